"""Retained messages come first, flagged, in steps, each once."""

from __future__ import annotations

from mqtt_proxy.delivery import resume
from mqtt_proxy.mqtt.codec import packets
from mqtt_proxy.retained import STEP_RECORDS_MAX, RetainedRun
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode
from tests.unit.mqtt_proxy.rig import publish, running, settle


async def test_a_new_subscription_gets_them_before_live_ones() -> None:
    """SUBACK, then retained messages with the flag, then live ones without."""
    async with running() as rig:
        sender = await rig.client("p")
        sender.send(publish("t/a", b"kept", 1, 1, retain=True), publish("t/b", b"cleared", 1, 2, retain=True))
        sender.send(publish("t/b", b"", 1, 3, retain=True))
        await settle()
        client = await rig.client("s")
        client.received()
        client.send(packets.Subscribe(1, [("t/#", 1)]))
        sender.send(publish("t/a", b"live", 1, 4))
        await settle()
        suback, *messages = client.received()
        assert suback == packets.Suback(1, [1])
        assert [(one.payload, one.retain) for one in messages] == [(b"kept", True), (b"live", False)]
        assert rig.count("retained_out_total") == 1


async def test_many_are_read_in_steps_and_repeated_on_resubscription() -> None:
    """More than a window: the next ones come as the window frees; subscribing again sends them again."""
    async with running(in_flight_max=10) as rig:
        total = STEP_RECORDS_MAX + 10
        sender = await rig.client("p")
        sender.send(*[publish(f"t/{number}", b"x", 1, number + 1, retain=True) for number in range(total)])
        await settle()
        client = await rig.client("s")
        for round_number in (1, 2):
            client.send(packets.Subscribe(round_number, [("t/#", 1)]))
            await settle()
            topics = []
            while messages := [one for one in client.received() if isinstance(one, packets.Publish)]:
                assert len(messages) <= 10
                topics += [one.topic for one in messages if one.retain]
                client.send(*[packets.Puback(one.packet_id) for one in messages])
                await settle()
            assert len(topics) == len(set(topics)) == total
        assert rig.broker.codes.count(RequestCode.RECORDS_AT) == 4


async def test_an_answer_that_was_full_is_continued() -> None:
    """Large retained messages do not fit one answer; none is taken for removed."""
    async with running() as rig:
        sender = await rig.client("p")
        sender.send(*[publish(f"t/{number}", b"x", 1, number + 1, retain=True) for number in range(8)])
        await settle()
        rig.broker.room = 3
        client = await rig.subscriber("s", ("other", 1))
        client.send(packets.Subscribe(2, [("t/#", 0)]))
        await settle()
        assert len({topic for topic, *_ in client.messages()}) == 8


async def test_pending_ones_survive_the_connection() -> None:
    """On its next connection a durable session gets what did not fit the window, and again what was in flight."""
    async with running(in_flight_max=3) as rig:
        sender = await rig.client("p")
        sender.send(*[publish(f"t/{number}", b"x", 1, number + 1, retain=True) for number in range(8)])
        await settle()
        client = await rig.client("s", clean=False)
        client.send(packets.Subscribe(1, [("t/#", 1)]))
        await settle()
        client.send(packets.Puback(1))
        client.lose()
        await settle()
        again = await rig.client("s", clean=False)
        topics = []
        while messages := [one for one in again.received() if isinstance(one, packets.Publish)]:
            topics += [(one.topic, one.dup) for one in messages if one.retain]
            again.send(*[packets.Puback(one.packet_id) for one in messages])
            await settle()
        assert {(b"t/1", True), (b"t/2", True)} <= set(topics)
        assert {topic for topic, _ in topics} >= {b"t/%d" % number for number in range(1, 8)}


async def test_what_a_closing_session_cannot_note_is_counted(monkeypatch) -> None:
    """The note takes the first ones; all others are counted, those of the step in progress included."""
    monkeypatch.setattr(resume, "PENDING_RETAINED_MAX", 5)
    async with running(in_flight_max=3) as rig:
        sender = await rig.client("p")
        sender.send(*[publish(f"t/{number}", b"x", 1, number + 1, retain=True) for number in range(90)])
        await settle()
        client = await rig.client("s", clean=False)
        client.send(packets.Subscribe(1, [("t/#", 1)]))
        await settle()
        client.lose()
        await settle()
        assert rig.count("messages_skipped_total{retained_note_full}") == 90 - 3 - 5


async def test_a_step_in_progress_is_still_to_be_sent() -> None:
    """A session that closes in between notes it."""
    async with running() as rig:
        run = RetainedRun(rig.link, range(100), lambda: None)
        run.fetch()
        assert run.remaining() == list(range(100))
        await settle()


async def test_a_failed_step_is_repeated() -> None:
    """Nothing is dropped."""
    async with running() as rig:
        sender = await rig.client("p")
        sender.send(publish("t", b"x", retain=True))
        await settle()
        rig.broker.refuse[RequestCode.RECORDS_AT] = [Refused(2, "busy")]
        woken: list[bool] = []
        run = RetainedRun(rig.link, [64], lambda: woken.append(True))
        run.fetch()
        while not woken:
            await settle(1)
        assert run.remaining() == [64]
        run.fetch()
        await settle()
        assert [bytes(payload) for _, _, payload, *_ in run.ready] == [b"x"]
        run.ready.clear()
        assert run.exhausted
