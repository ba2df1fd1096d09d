"""Steps of a history: one at a time, positions that only rise, requested starts that become positions."""

from __future__ import annotations

import asyncio

import pytest

from mqtt_proxy import history
from mqtt_proxy.history import HistoryRun
from remoting.protocol.bodies.session_body import (
    FINISHED,
    HISTORY_BIT,
    HistoryReply,
    HistoryRequest,
    HistoryStart,
    encode,
    pack_before,
)
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode
from tests.unit.mqtt_proxy.rig import settle
from tests.unit.mqtt_proxy.shared_world import message


class FakeLink:
    """Gives the answers of a list."""

    def __init__(self, *replies: HistoryReply | Exception) -> None:
        self.up = True
        self.replies = list(replies)
        self.asked: list[HistoryRequest] = []
        self.wakes = 0

    def step(self, request: HistoryRequest) -> asyncio.Future[bytes]:
        self.asked.append(request)
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            future.set_exception(reply)
        else:
            future.set_result(encode(reply))
        return future

    def wake(self) -> None:
        self.wakes += 1


def run_of(link: FakeLink, before: int) -> HistoryRun:
    return HistoryRun(link, "a/+", 7, before, link.wake)


async def test_a_count_becomes_a_position_and_then_messages() -> None:
    """Backwards until they are found, then forwards from there; nothing is committed before there is a position."""
    records = bytes(message(1)) + bytes(message(1))
    link = FakeLink(
        HistoryReply(900, False, last=2),
        HistoryReply(800, True),
        HistoryReply(850, False, records),
        HistoryReply(990, True),
    )
    place = pack_before(HistoryStart(last=5))
    run = run_of(link, place)
    assert run.queue_id == 7 | HISTORY_BIT
    for _ in range(2):
        assert not run.located
        assert run.lowest() == place
        run.fetch()
        run.fetch()
        await settle()
    assert (run.located, run.cursor, run.lowest()) == (True, 800, 800)
    run.fetch()
    await settle()
    assert len(run.ready) == 2
    run.fetch()
    assert [(one.position, one.from_ms, one.last) for one in link.asked] == [(0, 0, 5), (900, 0, 2), (800, 0, 0)]
    assert run.cursor == run.ready[0].position
    run.ready.clear()
    run.unacked[820] = None
    assert run.lowest() == 820
    run.fetch()
    await settle()
    assert (run.active, run.ended, run.cursor, run.lowest()) == (False, True, FINISHED, 820)
    run.acknowledge(820)
    assert run.lowest() == FINISHED
    run.fetch()
    assert len(link.asked) == 4
    assert link.wakes == 4


async def test_a_time_is_searched_until_there_is_a_position() -> None:
    """And a stored position continues where it is."""
    link = FakeLink(HistoryReply(0, False), HistoryReply(640, False), HistoryReply(700, True))
    run = run_of(link, pack_before(HistoryStart(from_ms=5)))
    run.fetch()
    await settle()
    run.fetch()
    await settle()
    assert [one.from_ms for one in link.asked] == [5, 5]
    again = run_of(link, 640)
    assert again.located
    again.fetch()
    await settle()
    assert (link.asked[-1].position, link.asked[-1].from_ms, again.ended) == (640, 0, True)
    assert not run_of(link, FINISHED).active


@pytest.mark.parametrize("failure", [RuntimeError("no"), Refused(ResponseCode.SERVICE_NOT_AVAILABLE, "not sure yet")])
async def test_an_unanswered_step_is_requested_again(monkeypatch: pytest.MonkeyPatch, failure: Exception) -> None:
    """After a pause, also where a new master is not sure yet; without a link nothing is sent."""
    monkeypatch.setattr(history, "RETRY_PAUSE_S", 0.0)
    link = FakeLink(failure, HistoryReply(700, True))
    run = run_of(link, 640)
    link.up = False
    run.fetch()
    assert link.asked == []
    link.up = True
    run.fetch()
    async with asyncio.timeout(10):
        while not link.wakes:
            await asyncio.sleep(0)
    assert link.wakes == 1
    run.fetch()
    await settle()
    assert run.ended


async def test_what_the_broker_refuses_ends_the_history() -> None:
    """It is counted, and does not delay live messages."""
    refusals: list[bool] = []
    link = FakeLink(Refused(2, "over too many queues"))
    run = HistoryRun(link, "#", 7, 640, link.wake, lambda: refusals.append(True))
    run.fetch()
    await settle()
    assert (run.ended, run.active, refusals, link.wakes) == (True, False, [True], 1)
