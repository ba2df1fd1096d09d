"""Sessions without frames: the answers of the frames, many filters' queues by one record, refusals alone."""

from __future__ import annotations

import asyncio
from functools import partial

from broker.direct.appends import DirectAppends
from remoting import inprocess
from remoting.protocol.bodies.session_body import FilterRequest, SessionClose, SessionOpen, SubscribeRequest
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.records import names


class Heard:
    """Answers by what was asked."""

    def __init__(self, running) -> None:
        self.running = running
        self.connection = inprocess.connect(running.router, port=DirectAppends(running.broker))
        self.answers: dict[str, object] = {}

    def said(self, what: str, answer: object, error: Exception | None) -> None:
        assert what not in self.answers, "said once"
        self.answers[what] = error if answer is None else answer

    def open(self, client_id: str, expiry_s: int = 0, user: str | None = None):
        request = SessionOpen(client_id, False, user, expiry_s)
        self.connection.session_open(request, partial(self.said, client_id))
        return self.answers.get(client_id)

    async def settled(self, what: str):
        await self.running.settle()
        await asyncio.sleep(0)
        return self.answers[what]


async def test_a_new_clean_session_is_there_when_the_call_returns(running) -> None:
    heard = Heard(running)
    opened = heard.open("a")
    assert (opened.present, opened.subscriptions) == (False, [])
    assert running.broker.sessions.table.connected == 1


async def test_a_durable_one_is_there_when_it_is_confirmed(running) -> None:
    heard = Heard(running)
    assert heard.open("a", expiry_s=60) is None
    opened = await heard.settled("a")
    heard.connection.session_close(SessionClose("a", opened.epoch, True, [], []), partial(heard.said, "closed"))
    assert isinstance(await heard.settled("closed"), int)
    heard.answers.clear()
    heard.open("a", expiry_s=60)
    assert (await heard.settled("a")).present


async def test_queues_of_a_turn_are_one_record(running) -> None:
    heard = Heard(running)
    epochs = [heard.open(name).epoch for name in "abc"]
    end = running.store.end_position
    filters = [["x/1", "x/2"], ["x/2"], ["bad/#/x", "y/+"]]
    wanted = [
        (
            SubscribeRequest(name, epoch, False, [FilterRequest(one, 1) for one in asked]),
            partial(heard.said, "s" + name),
        )
        for name, epoch, asked in zip("abc", epochs, filters, strict=True)
    ]
    heard.connection.subscribe(wanted)
    assert running.store.end_position > end
    results = {name: (await heard.settled("s" + name)).results for name in "abc"}
    assert results["a"][1].queue_id == results["b"][0].queue_id == queue(running, b"x/2")
    assert [one.code for one in results["c"]] == [0x8F, 1]
    heard.answers.clear()
    heard.connection.subscribe(wanted[:1])  # nothing has to be made: at once
    assert heard.answers["sa"].results[0].existed


def queue(running, topic: bytes) -> int | None:
    return running.store.queues.find(names.light_queue_name(topic))


async def test_a_fenced_session_is_refused_alone(running) -> None:
    heard = Heard(running)
    epoch = heard.open("a").epoch
    wanted = [
        (SubscribeRequest("a", epoch + 1, False, [FilterRequest("t", 0)]), partial(heard.said, "fenced")),
        (SubscribeRequest("a", epoch, False, [FilterRequest("t", 0)]), partial(heard.said, "held")),
    ]
    heard.connection.subscribe(wanted)
    refused = await heard.settled("fenced")
    assert isinstance(refused, Refused)
    assert refused.code == ResponseCode.ILLEGAL_OPERATION
    assert heard.answers["held"].results[0].code == 0
    heard.connection.session_close(SessionClose("a", epoch + 1, False, [], []), partial(heard.said, "closed"))
    assert isinstance(heard.answers["closed"], Refused)


async def test_a_full_disk_is_said_to_each(running) -> None:
    heard = Heard(running)
    epoch = heard.open("a").epoch
    running.store.disk.full = True
    wanted = [
        (SubscribeRequest("a", epoch, False, [FilterRequest(topic, 0)]), partial(heard.said, topic))
        for topic in ("t", "u")
    ]
    heard.connection.subscribe(wanted)
    for topic in ("t", "u"):
        refused = await heard.settled(topic)
        assert isinstance(refused, Refused)
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE


async def test_somebody_elses_session_is_refused(running) -> None:
    heard = Heard(running)
    heard.open("a", user="ann")
    heard.answers.clear()
    refused = heard.open("a", user="bob")
    assert isinstance(refused, Refused)
    assert refused.code == ResponseCode.NO_PERMISSION
