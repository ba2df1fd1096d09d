"""What a proxy tells its broker about its clients, and how it disconnects one."""

from __future__ import annotations

import pytest

from mqtt_proxy import operating
from mqtt_proxy.mqtt.codec import packets
from mqtt_proxy.mqtt.codec.limits import SessionLimits
from mqtt_proxy.mqtt.codec.packets import Will
from mqtt_proxy.operating import Operating
from remoting.protocol.bodies.operating_body import (
    ClientPage,
    ClientQuery,
    LimitsNamed,
    ProxyAnswered,
    ProxyAsked,
    QuotaAnswer,
    RuleAnswer,
    RuleLinesAnswer,
    RuleLinesQuestion,
    RuleQuestion,
    decode,
    encode,
)
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode
from tests.unit.mqtt_proxy.rig import Rig, publish, running, settle


def begin(rig: Rig) -> Operating:
    made = Operating(rig.services, "1.2")
    made.opened({"tcp": 1883})
    return made


async def page(rig: Rig, question: str = "clients", **query) -> ClientPage:
    answered = await answer(rig, question, encode(ClientQuery(**({"limit": 10} | query))))
    assert answered.error == ""
    return decode(ClientPage, answered.body)


async def answer(rig: Rig, question: str, body: bytes) -> ProxyAnswered:
    rig.broker.ask_proxy(ProxyAsked(7, question, body))
    await settle()
    answered = rig.broker.proxy_answers.pop()
    assert answered.number == 7
    return answered


async def test_the_broker_names_the_longest_delay() -> None:
    """Sessions that are connected have it at once."""
    limits = SessionLimits()
    async with running() as rig:
        made = Operating(rig.services, "1.2", dict, limits.delay)
        made.opened({"tcp": 1883})
        await settle()
        assert (await answer(rig, "limits", encode(LimitsNamed(9)))).error == ""
        assert limits.delay.s_max == 9
        quotas = decode(QuotaAnswer, (await answer(rig, "quotas", b"")).body)
        assert quotas.limits["delay_s_max"] == 9


async def test_a_proxy_shows_itself_after_every_connection() -> None:
    async with running() as rig:
        begin(rig)
        await settle()
        (shown,) = rig.broker.proxies
        assert (shown.version, shown.listeners) == ("1.2", {"tcp": 1883})
        assert ":1883/" in shown.name
        rig.broker.refuse[RequestCode.PROXY_PRESENT] = [Refused(2, "too many")]  # logged, and tried again next time
        for _ in range(2):
            rig.link.drop("test")
            await settle()
        assert [one.name for one in rig.broker.proxies] == [shown.name] * 2


async def test_a_client_as_it_is_connected() -> None:
    async with running() as rig:
        begin(rig)
        rig.clock.advance_ms(5_000)
        reader = await rig.subscriber("r", ("a/#", 1), level=5)
        writer = await rig.client("w", username="anna", clean=False)
        writer.send(publish("a/1", b"x"), publish("a/1", b"y", packet_id=2))
        await settle()
        assert len(reader.messages()) == 2
        found = await page(rig)
        assert (found.total, found.matching, [one.client for one in found.clients]) == (2, 2, ["r", "w"])
        first, second = found.clients
        assert (first.user, first.version, first.clean, first.subscriptions) == (None, "5", True, 1)
        assert (first.in_flight, first.backlog, first.address, first.protocol) == (2, 0, "test", "tcp")
        assert (second.user, second.version, second.clean) == ("anna", "3.1.1", False)
        assert first.since_ms == rig.clock.now_ms()


async def test_pages_and_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operating, "STEP", 2)
    async with running() as rig:
        begin(rig)
        for name in ("b1", "a1", "c2", "a2", "d"):
            await rig.client(name, username="anna" if name == "d" else None)
        first = await page(rig, limit=2)
        assert ([one.client for one in first.clients], first.total) == (["a1", "a2"], 5)
        assert [one.client for one in (await page(rig, after="a2")).clients] == ["b1", "c2", "d"]
        for query, names in (
            ({"prefix": "a"}, ["a1", "a2"]),
            ({"contains": "2"}, ["a2", "c2"]),
            ({"user": "anna"}, ["d"]),
            ({"address": "te", "prefix": "b"}, ["b1"]),
            ({"address": "10."}, []),
            ({"client": "c2"}, ["c2"]),
            ({"client": "nobody"}, []),
        ):
            found = await page(rig, **query)
            assert ([one.client for one in found.clients], found.matching) == (names, len(names)), query


async def test_the_client_that_sends_most_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operating, "STEP", 2)
    async with running() as rig:
        begin(rig)
        reader = await rig.subscriber("reader", ("a/#", 1))
        wires = {name: await rig.client(name) for name in ("a", "b", "c", "d")}
        rig.clock.advance_ms(2_000)
        for name, count in (("b", 4), ("d", 40), ("a", 4)):
            wires[name].send(*[publish("a/1", b"x", packet_id=each + 1) for each in range(count)])
        await settle()
        assert len(reader.messages()) == 48
        shown = await page(rig, limit=3, sort="-messages_in_per_s")
        assert [(one.client, one.messages_in, one.messages_in_per_s) for one in shown.clients] == [
            ("d", 40, 20.0), ("a", 4, 2.0), ("b", 4, 2.0),
        ]  # fmt: skip
        rest = await page(rig, sort="-messages_in_per_s", after="2.0 a")
        assert [one.client for one in rest.clients] == ["b", "c", "reader"]
        (first, *_rest) = (await page(rig, sort="-messages_out")).clients
        assert (first.client, first.messages_out, first.messages_out_per_s) == ("reader", 48, 24.0)
        assert [one.client for one in (await page(rig, limit=2, sort="-id")).clients] == ["reader", "d"]
        (held,) = (await page(rig, limit=1, sort="-in_flight")).clients
        assert (held.client, held.in_flight) == ("reader", 48)
        for wrong in ({"sort": "size"}, {"sort": "backlog", "after": "x"}):
            assert (await answer(rig, "clients", encode(ClientQuery(5, **wrong)))).error != ""
        for sort in operating.FIGURE_OF:  # what it is sorted by is what is shown
            values = [getattr(one, sort) for one in (await page(rig, sort=sort)).clients]
            assert values == sorted(values), sort


async def test_a_kicked_client_is_told_and_its_will_is_due() -> None:
    async with running() as rig:
        begin(rig)
        five = await rig.client("five", level=5, will=Will(b"w", b"gone", 1, False))
        three = await rig.client("three")
        five.received()
        assert [one.client for one in (await page(rig, "kick", client="five")).clients] == ["five"]
        (told,) = five.received()
        assert isinstance(told, packets.Disconnect)
        assert told.reason == 0x98
        assert [(one.client_id, one.will) for one in rig.broker.closed] == [("five", 1)]
        await page(rig, "kick", client="three")
        assert three.closed is not None
        assert three.closed.startswith("kicked")
        assert (await page(rig, "kick", client="three")).clients == []
        assert rig.count("closes_total{kicked}") == 2


async def test_what_is_not_understood_or_too_much_gets_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as rig:
        begin(rig)
        await settle()
        assert "does not know the question 'weather'" in (await answer(rig, "weather", b"")).error
        assert "malformed ClientQuery" in (await answer(rig, "clients", b"\x00")).error
        monkeypatch.setattr(operating, "QUESTIONS_MAX", 0)
        assert "try later" in (await answer(rig, "clients", b"")).error


async def test_rules_and_quotas_in_force() -> None:
    """A test of a rule is not counted as a refusal."""
    async with running(connections_max=7) as rig:
        made = Operating(rig.services, "1.2", lambda: {"rocketmq_mqtt_x_refused_total{y}": 2.0, "other": 1.0})
        made.opened({"tcp": 1883})
        await settle()
        rig.access.forbidden.add(b"secret")
        for question, allowed in (
            (RuleQuestion("publish", "secret"), False), (RuleQuestion("subscribe", "a/#", "anna"), True),
        ):  # fmt: skip
            answered = decode(RuleAnswer, (await answer(rig, "access", encode(question))).body)
            assert answered == RuleAnswer(allowed, "", "")
        for wrong in (
            RuleQuestion("fly", "a"),
            RuleQuestion("publish", "a/#"),
            RuleQuestion("publish", "a", qos=3),
        ):
            assert (await answer(rig, "access", encode(wrong))).error
        lines = decode(RuleLinesAnswer, (await answer(rig, "rules", encode(RuleLinesQuestion(0, 9)))).body)
        assert lines == RuleLinesAnswer([], 0, True)
        quotas = decode(QuotaAnswer, (await answer(rig, "quotas", b"")).body)
        assert (quotas.limits["connections_max"], quotas.used["sessions"]) == (7.0, 0.0)
        assert quotas.refusals == {"rocketmq_mqtt_x_refused_total{y}": 2.0}
