"""Wills are stored by the broker; the proxy judges them when they are due."""

from __future__ import annotations

from mqtt_proxy.mqtt.codec.packets import Publish, Will
from mqtt_proxy.wills import WillJudge, identity_of, will_spec
from remoting.access.rules import Identity, Rule
from remoting.protocol.bodies.session_body import WillVerdict
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode
from tests.unit.mqtt_proxy.rig import running, settle

RULE = Rule("token", "topic write w", b"w", allow=True, read=False, write=True)
ANNA = Identity("anna", anonymous=False, client_id="a", groups=("fitters",), rules=(RULE,), bridge=True)
WILL = will_spec(Will(b"w", b"gone", 1, True), ANNA)


def test_a_will_of_a_connect_as_the_broker_stores_it() -> None:
    spec = will_spec(Will(b"w", b"gone", 1, True), ANNA)
    assert (spec.topic, spec.payload, spec.qos, spec.retain, spec.delay_s) == (b"w", b"gone", 1, True, 0)
    assert identity_of(spec.author) == ANNA


async def test_an_allowed_will_is_published_and_counted() -> None:
    async with running() as rig:
        await settle()
        rig.broker.will_due("a", 7, WILL)
        await settle()
        assert rig.broker.verdicts == [WillVerdict("a", 7, True)]
        assert rig.count("wills_total") == 1
        assert b"w" in rig.broker.retained


async def test_a_revoked_right_counts() -> None:
    async with running() as rig:
        await settle()
        rig.access.forbidden.add(b"w")
        rig.broker.will_due("a", 7, WILL)
        await settle()
        assert rig.broker.verdicts == [WillVerdict("a", 7, False, "not_authorized")]
        assert rig.count("wills_failed_total{not_authorized}") == 1
        assert rig.count("wills_total") == 0


async def test_a_will_that_the_broker_refuses_is_counted() -> None:
    async with running() as rig:
        await settle()
        rig.broker.refuse[RequestCode.WILL_VERDICT] = [Refused(14, "disk full")]
        rig.broker.will_due("a", 7, WILL)
        await settle()
        assert rig.count("wills_failed_total{broker}") == 1


async def test_earlier_publishes_stay_before_the_will() -> None:
    async with running() as rig:
        client = await rig.client("a", will=Will(b"w", b"last", 0, True))
        rig.broker.holding = True
        for number in range(3):  # two appends are in flight, the third gathers
            client.send(Publish(b"t", b"%d" % number, 0, False, False, 0))
            await settle(3)
        rig.broker.codes.clear()
        client.lose()
        await settle()
        wanted = [RequestCode.SESSION_CLOSE, RequestCode.APPEND_MANY, RequestCode.WILL_VERDICT]
        assert [code for code in rig.broker.codes if code in wanted] == wanted


async def test_the_proxy_registers_again_as_judge_when_the_broker_is_back() -> None:
    async with running() as rig:
        await settle()
        assert len(rig.broker.judges) == 1
        await rig.broker.connections[0].close()
        while not rig.link.up:
            await settle(1)
        await settle()
        assert len(rig.broker.judges) == 2


async def test_a_connection_lost_again_is_no_error() -> None:
    """It was lost before the proxy could register; the next one gets the registration."""
    async with running() as rig:
        await settle()
        judge = WillJudge(
            rig.link,
            rig.access,
            rig.metrics,
            send_publishes=rig.services.publisher.send_now,
            keep=rig.services.keep,
        )
        await rig.broker.connections[-1].close()
        judge._watch()
        while not rig.link.up:
            await settle(1)
        await settle()
        assert len(rig.broker.judges) >= 2
