"""Watching how far the queues of a selection reach."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from remoting.protocol.bodies.controller_body import QueueData
from remoting.protocol.bodies.pull_body import decode_bounds_reply, encode_bounds_reply
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from spark_connector import brokers
from spark_connector.brokers import KnownGroups, masters_at
from spark_connector.errors import BrokerUnreachable, GroupAbsent
from spark_connector.options.read_write import ReadOptions
from spark_connector.reading import bounds as bounds_module
from spark_connector.reading.bounds import LOOK_EVERY_S, BoundsWatch, prove_ends
from spark_connector.reading.selection import light_key, select
from tests.unit.spark_connector.toy_broker import NAME, ToyBroker

Options = Callable[..., ReadOptions]


def test_bounds_of_exact_and_wildcard(broker: ToyBroker, read_options: Options) -> None:
    broker.publish("plant/1", [b"a", b"b"])
    broker.publish("plant/2", [b"c"])
    options = read_options(mqttFilter="plant/1")
    watch = BoundsWatch(options, select(options))
    (bounds,) = watch.read().values()
    assert (bounds.min, bounds.max) == (0, 2)
    assert watch.addresses == {NAME: ("", broker.address)}
    options = read_options(mqttFilter="plant/+")
    found = BoundsWatch(options, select(options)).read()
    assert sum(one.max for one in found.values()) == 3


def test_readers_are_known_while_a_broker_has_some(broker: ToyBroker, read_options: Options) -> None:
    broker.publish("plant/1", [b"a"])
    options = read_options(mqttFilter="plant/1")
    watch = BoundsWatch(options, select(options))
    watch.read()
    told: list[str | None] = []

    def tell(command: Command) -> Command:
        reply = broker.answer(command)
        body = msgspec.structs.replace(decode_bounds_reply(reply.body), readers=told[-1])
        return command.reply(body=encode_bounds_reply(body))

    for address, known in (("h:1", {NAME: ("h", 1)}), ("no address", {}), ("[::1]:2", {NAME: ("::1", 2)}), (None, {})):
        told.append(address)
        broker.faults = [tell]
        watch.read()
        assert watch.readers == known


def test_what_lies_behind_an_end_is_asked_for_until_the_master_is_certain(
    broker: ToyBroker, read_options: Options
) -> None:
    broker.publish("plant/1", [b"a", b"b"])
    options = read_options(mqttFilter="plant/1")
    watch = BoundsWatch(options, select(options))
    bounds = watch.read()
    (key,) = bounds
    asked = len(broker.requests)
    prove_ends({key: 2}, bounds, watch.masters)
    assert len(broker.requests) == asked, "nothing is doubtful"
    broker.unproven = 1
    with pytest.raises(BrokerUnreachable, match="does not know yet"):
        prove_ends({key: 3}, bounds, watch.masters)
    prove_ends({key: 3}, bounds, watch.masters)
    assert broker.requests[asked:] == [RequestCode.MULTI_PULL] * 2


def test_waiting_requests_have_what_was_seen(broker: ToyBroker, read_options: Options) -> None:
    broker.publish("plant/1", [b"a"])
    options = read_options(mqttFilter="plant/1,car/1")
    watch = BoundsWatch(options, select(options))
    assert set(watch.wait(50)) == {light_key("plant/1", NAME)}, "the first answer needs no waiting"
    asked: list[bytes] = []

    def spy(command):  # type: ignore[no-untyped-def]
        asked.append(command.body)
        return broker.answer(command)

    broker.faults = [spy]
    watch.wait(50)
    assert b'"wait_ms":50' in asked[0]
    assert b'"known":{"plant":{' in asked[0]
    assert broker.requests[-3:] == [RequestCode.QUEUE_BOUNDS] * 3


def test_the_same_answer_is_not_read_again(broker: ToyBroker, read_options: Options) -> None:
    broker.publish("plant/1", [b"a"])
    options = read_options(mqttFilter="plant/+")
    watch = BoundsWatch(options, select(options))
    first = watch.read()
    assert watch.read() is first
    assert watch.present == {NAME}
    broker.publish("plant/1", [b"b"])
    second = watch.read()
    assert sum(one.max for one in second.values()) == 2
    assert all(one is other for one, other in zip(first, second, strict=True)), "the keys are the same objects"


def known_groups(masters: dict[str, ToyBroker], options: ReadOptions, *absent: str) -> KnownGroups:
    """What the name servers know."""
    addresses = {name: (name, broker.address) for name, broker in masters.items()}
    return KnownGroups(masters_at(addresses, options), absent)


@pytest.mark.parametrize("at", ["b", "c"])
def test_the_rest_of_a_topic_is_not_taken_for_all_of_it(
    broker: ToyBroker, read_options: Options, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """While a group is away that has queues of it; one that has none is not missed, except by who reads everything."""
    broker.publish("plant/1", [b"a"])
    monkeypatch.setattr(brokers, "topic_queues", lambda topic, _: [QueueData(at, 1, 1, 6)] if topic == "plant" else [])
    for given in ({"mqttFilter": "plant/1"}, {"mqttFilter": "plant/#"}, {"topic": "plant"}):
        options = read_options(**given)
        monkeypatch.setattr(bounds_module, "find_groups", lambda _, options=options: known_groups(
            {"a": broker}, options, "b"))  # fmt: skip
        watch = BoundsWatch(options, select(options))
        if at == "c":
            assert watch.complete()
            continue
        with pytest.raises(GroupAbsent, match="broker group 'b' has no master"):
            watch.complete()
    options = read_options(mqttFilter="#")
    with pytest.raises(GroupAbsent, match="broker group 'b' has no master"):
        BoundsWatch(options, select(options)).complete()


def test_where_losses_are_allowed_a_group_that_is_away_is_named_in_the_log(
    broker: ToyBroker, read_options: Options, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The rest is read; where there is no rest there is no answer."""
    broker.publish("plant/1", [b"a"])
    options = read_options(mqttFilter="#", failOnDataLoss="false")
    monkeypatch.setattr(bounds_module, "find_groups", lambda _: known_groups({"a": broker}, options, "b"))
    watch = BoundsWatch(options, select(options))
    for _ in range(2):
        assert watch.complete()
    assert [one.getMessage() for one in caplog.records] == ["read without the broker groups that have no master: b"]
    monkeypatch.setattr(brokers, "topic_queues", lambda *_: [QueueData("b", 1, 1, 6)])
    options = read_options(topic="other", failOnDataLoss="false")
    with pytest.raises(GroupAbsent, match="broker group 'b'"):
        BoundsWatch(options, select(options)).complete()


def test_a_group_that_joins_is_read(broker: ToyBroker, read_options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name servers are asked again after a while; where they do not answer, those that are known go on."""
    now, other = [0.0], ToyBroker()
    monkeypatch.setattr("remoting.clock.monotonic_s", lambda: now[0])
    broker.publish("plant/1", [b"a"])
    other.publish("plant/1", [b"b"])
    options = read_options(mqttFilter="plant/#")
    there = {"b": broker}
    monkeypatch.setattr(bounds_module, "find_groups", lambda _: known_groups(there, options))
    watch = BoundsWatch(options, select(options))
    asked = [bool(watch.wait(0)), len(other.requests)]
    there["a"] = other
    watch.wait(0)
    assert [*asked, len(other.requests)] == [True, 0, 0]
    now[0] += LOOK_EVERY_S
    watch.wait(0)
    assert other.requests != []

    def silent(_: object) -> KnownGroups:
        raise BrokerUnreachable("nobody")

    monkeypatch.setattr(bounds_module, "find_groups", silent)
    now[0] += LOOK_EVERY_S
    before = len(other.requests)
    watch.wait(0)
    assert len(other.requests) > before
    other.close()


def test_name_servers_that_are_silent_delay_no_query_much(
    broker: ToyBroker, read_options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is tried once and briefly, and the longer that took, the later again."""
    now, asked = [0.0], list[ReadOptions]()
    monkeypatch.setattr("remoting.clock.monotonic_s", lambda: now[0])
    broker.publish("plant/1", [b"a"])
    options = read_options(topic="plant", fetchRetries="3")

    def found(given: ReadOptions) -> KnownGroups:
        asked.append(given)
        if len(asked) > 1:
            now[0] += 4.0
            raise BrokerUnreachable("nobody")
        return known_groups({"a": broker}, options)

    monkeypatch.setattr(bounds_module, "find_groups", found)
    watch = BoundsWatch(options, select(options))
    watch.find_groups()
    now[0] = LOOK_EVERY_S
    for _ in range(40):
        watch.wait(0)
        now[0] += 1.0
    assert [one.fetch_retries for one in asked] == [3, 0]
    watch.wait(0)
    assert len(asked) == 3
    assert asked[-1].pull_timeout_ms <= 2_000


def test_a_running_query_that_finds_nobody_fails_soon_by_name(broker: ToyBroker, read_options: Options) -> None:
    """One attempt for each call: how long they are repeated, `brokerWaitMs` alone says."""
    broker.publish("plant/1", [b"a"])
    options = read_options(topic="plant", fetchRetries="3", fetchretryintervalms="60000")
    watch = BoundsWatch(options, select(options))
    assert watch.wait(0)
    broker.close()
    watch._groups = {}
    host, port = broker.address
    with pytest.raises(BrokerUnreachable, match=rf"no answer from {host}:{port} after 1 attempt:"):
        watch.wait(0)
