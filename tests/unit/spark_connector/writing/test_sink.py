"""Ledgers of several broker groups: a batch is decided once and completed by any later driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pytest

from remoting.protocol.bodies.sink_body import BatchDigest, Planned, StageHandle
from remoting.protocol.records import image
from spark_connector.brokers import GroupMaster, KnownGroups, find_groups
from spark_connector.errors import BrokerUnreachable, GroupAbsent, OptionError
from spark_connector.options.read_write import WriteOptions
from spark_connector.writing import sink
from spark_connector.writing.replays import KIND, Replayed
from spark_connector.writing.row_encoder import EncodedRows
from spark_connector.writing.sink import AttemptName
from tests.support.spark_rows import named_masters, send_rows, tell_groups
from tests.unit.spark_connector.toy_broker import ToyBroker

Options = Callable[..., WriteOptions]
MINE = Replayed("s", 3, None)
DIGEST = BatchDigest(5, 1, 2, KIND)


def encoded(count: int) -> EncodedRows:
    """Rows for the MQTT topic a/b."""
    raw = [image.encode_mqtt_image(b"a/b", b"%d" % n, 1, 0, b"") for n in range(count)]
    return EncodedRows(
        memoryview(b"".join(raw)), np.concatenate([[0], np.cumsum([len(one) for one in raw])]).astype(np.int64)
    )


def visible(broker: ToyBroker) -> int:
    """The visible messages."""
    return len(broker.queue("%LMQ%a%2Fb", 0).records)


@pytest.fixture
def other() -> Iterator[ToyBroker]:
    """A second broker group."""
    toy = ToyBroker()
    yield toy
    toy.close()


@pytest.fixture
def groups(broker: ToyBroker, other: ToyBroker, monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[str, int]]:
    """Both, as a name server lists them."""
    found = {"a": broker.address, "b": other.address}
    tell_groups(monkeypatch, found)
    return found


def staged(broker: ToyBroker, attempt: int, count: int, options: WriteOptions, batch: int = 3) -> list[StageHandle]:
    """Stage rows of one task."""
    send_rows(broker.address, [encoded(count)], AttemptName("s", batch, 0, attempt), options)
    return [StageHandle(0, attempt, count)]


def test_nothing_shows_before_the_commit_and_a_repeat_changes_nothing(
    broker: ToyBroker, write_options: Options
) -> None:
    """One group: one request, which may be repeated."""
    options = write_options()
    assert sink.sink_home("s", options).last_batch == -1
    handles = staged(broker, 99, 15, options)
    assert visible(broker) == 0
    asked = len(broker.requests)
    for _ in range(2):
        assert sink.commit_everywhere(MINE, {"": handles}, options) == [""]
    assert visible(broker) == 15
    assert len(broker.requests) - asked == 4, "the brokers, the commit, and both again"
    assert sink.sink_home("s", options).last_batch == 3
    send_rows(broker.address, [encoded(7)], AttemptName("s", 4, 0, 1), options)
    sink.abort_batch(GroupMaster("", broker.address, options), "s", 4)
    assert ("s", 4, 0, 1) not in broker.staged


def test_a_sink_stays_where_it_committed_before(
    broker: ToyBroker, other: ToyBroker, groups: dict[str, tuple[str, int]], write_options: Options
) -> None:
    """A broker group that joins with an earlier name gets new sinks, not this one."""
    assert sink.sink_home("s", write_options()).group == "a"
    other.ledger["s"] = 4
    home = sink.sink_home("s", write_options())
    assert (home.group, home.last_batch) == ("b", 4)
    assert {group: master.address for group, master in home.brokers.items()} == groups
    broker.close()
    with pytest.raises(BrokerUnreachable):
        sink.sink_home("s", write_options())


def test_the_home_of_a_sink_is_not_looked_for_while_a_group_is_away(
    groups: dict[str, tuple[str, int]], write_options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That one may have decided the batch; the others would write its rows again."""
    masters = find_groups(write_options()).masters
    monkeypatch.setattr(sink, "find_groups", lambda _options: KnownGroups({"b": masters["b"]}, ("a",)))
    says = "broker group 'a' has no master at the moment, and the last batch of sink 's' may be there"
    with pytest.raises(GroupAbsent, match=says):
        sink.sink_home("s", write_options())
    with pytest.raises(GroupAbsent, match=says):
        sink.commit_everywhere(MINE, {"b": []}, write_options())


def test_the_group_that_decided_the_last_batch_stays_the_home(
    broker: ToyBroker, other: ToyBroker, groups: dict[str, tuple[str, int]], write_options: Options
) -> None:
    """The first by name has the batch too, as a part of it: what is left of the plan is known at the second alone."""
    broker.ledger["s"] = other.ledger["s"] = 4
    other.plans["s"] = [Planned("a", []), Planned("c", [])]
    assert sink.sink_home("s", write_options()).group == "b"
    other.plans["s"], other.digests["s"] = [], DIGEST
    assert sink.sink_home("s", write_options()).group == "b"


def test_a_late_commit_of_other_rows_is_refused(broker: ToyBroker, write_options: Options) -> None:
    """By two drivers that staged the same batch number; without a digest, of an earlier release, it is as before."""
    options = write_options()
    first, late = staged(broker, 1, 5, options), staged(broker, 2, 5, options)
    sink.commit_everywhere(Replayed("s", 3, DIGEST), {"": first}, options)
    sink.commit_everywhere(Replayed("s", 3, DIGEST), {"": first}, options)
    foreign = Replayed("s", 3, BatchDigest(5, 1, 3, KIND))
    with pytest.raises(OptionError, match="copied checkpoint"):
        sink.commit_everywhere(foreign, {"": late}, options)
    sink.commit_everywhere(foreign, {"": late}, write_options(replayMismatch="skip"))
    sink.commit_everywhere(MINE, {"": late}, options)
    broker.digests["s"] = None
    sink.commit_everywhere(foreign, {"": late}, options)
    broker.ledger["s"] = 4
    with pytest.raises(OptionError, match="batch 4 and this query writes batch 3"):
        sink.commit_everywhere(foreign, {"": late}, options)
    assert visible(broker) == 5


@pytest.mark.parametrize("steps", range(4))
def test_a_driver_that_dies_between_two_steps_leaves_a_batch_that_is_all_or_nothing(
    broker: ToyBroker,
    other: ToyBroker,
    groups: Mapping[str, tuple[str, int]],
    write_options: Options,
    monkeypatch: pytest.MonkeyPatch,
    steps: int,
) -> None:
    """After any number of steps a replay with other attempts shows each row once: the old ones or the new ones."""
    options = write_options()
    first = {"a": staged(broker, 1, 5, options), "b": staged(other, 1, 4, options)}
    commit, left = sink.commit_batch, [steps]

    def dying(*given: object, **named: object) -> object:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return commit(*given, **named)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(sink, "commit_batch", dying)
        if steps < 3:
            with pytest.raises(KeyboardInterrupt):
                sink.commit_everywhere(MINE, first, options)
        else:
            assert sink.commit_everywhere(MINE, first, options) == ["a", "b"]
    assert (visible(broker), visible(other)) == [(0, 0), (0, 0), (5, 0), (5, 4)][steps]
    home = sink.sink_home("s", options)
    assert (home.last_batch == 3) == (steps > 1)
    if home.last_batch == 3:
        assert home.plan == (Planned("b", first["b"]),)
        assert sink.finish_batch(home, MINE, options) == ["a", "b"]
    else:
        # Spark runs the batch again; its rows may be distributed otherwise.
        again = {"a": staged(broker, 2, 4, options), "b": staged(other, 2, 5, options)}
        sink.commit_everywhere(MINE, again, options)
    assert visible(broker) + visible(other) == 9
    sink.commit_everywhere(MINE, first, options)
    assert visible(broker) + visible(other) == 9
    older = Replayed("s", 2, None)
    assert sink.finish_batch(home, older, write_options(replayMismatch="skip"))[0] == "a", "nothing is left to do"


def test_what_was_decided_counts_for_a_late_driver(
    broker: ToyBroker, other: ToyBroker, groups: Mapping[str, tuple[str, int]], write_options: Options
) -> None:
    """Its own attempts at the other group are not committed, the decided ones are."""
    options = write_options()
    first = {"a": staged(broker, 1, 5, options), "b": staged(other, 1, 4, options)}
    plan = [Planned("b", first["b"])]
    masters = named_masters({"a": broker.address, "b": other.address}, options)
    sink.commit_batch(masters["b"], "s", 3, first["b"], prepare=True)
    sink.commit_batch(masters["a"], "s", 3, first["a"], plan=plan)
    late = {"a": staged(broker, 2, 5, options), "b": staged(other, 2, 9, options)}
    sink.commit_everywhere(MINE, late, options)
    assert (visible(broker), visible(other)) == (5, 4)


def test_an_absent_group_is_waited_for(
    broker: ToyBroker,
    other: ToyBroker,
    groups: dict[str, tuple[str, int]],
    write_options: Options,
) -> None:
    """Nothing is decided while a group with staged rows has no master."""
    options = write_options()
    handles = {"a": staged(broker, 1, 5, options), "b": staged(other, 1, 4, options)}
    del groups["b"]
    with pytest.raises(BrokerUnreachable, match="'b'"):
        sink.commit_everywhere(MINE, handles, options)
    assert visible(broker) == 0


def test_a_finished_sink(broker: ToyBroker, write_options: Options) -> None:
    """Its ledger is deleted."""
    broker.ledger["s"] = 4
    sink.forget_sink(GroupMaster("", broker.address, write_options()), "s")
    assert broker.ledger == {}
