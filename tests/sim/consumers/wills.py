"""Wills of MQTT clients, as a proxy leaves, continues, ends and judges them; and who reads what becomes of them."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from remoting.protocol.bodies.packed import decode, encode
from remoting.protocol.bodies.pull_body import decode_multi_pull_reply, encode_multi_pull
from remoting.protocol.bodies.session_body import (
    WILL_DISCARD,
    WILL_DUE,
    FilterRequest,
    SessionClose,
    SessionOpen,
    SessionOpened,
    Subscribed,
    SubscribeRequest,
    WillDue,
    WillSpec,
    WillVerdict,
)
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.record import iter_records
from tests.sim.consumers.basic import STORED, Client
from tests.sim.consumers.door import NoAnswer, Scene
from tests.sim.consumers.requests import QOS_1, body_of, name_of
from tests.support.consumer_state import Fate

TOPIC, FILTER = "wills", "wills/#"
DELAYS_S = (0, 0, 1)
EXPIRY_S = 3_600


class WillClient(Client):
    """Connections with wills, one after the other: some end normally, some by an error, some with their proxy."""

    works_on = False
    pause_s = (0.1, 0.6)

    def __init__(self, scene: Scene, number: int, reader: QueueReader) -> None:
        self._who, self._number, self._reader = number, 0, reader
        super().__init__(scene)

    async def step(self) -> None:
        if not self._reader.is_ready:
            return
        self._number += 1
        name = f"{TOPIC}-{self._who}-{self._number}"
        self.state.expect(name, TOPIC)
        delay_s = self.chance.choice(DELAYS_S)
        spec = WillSpec(f"{TOPIC}/{self._who}".encode(), body_of(name), QOS_1, False, delay_s, [], b"")
        epoch = await self._open(name, spec, 0)
        generation = self.door.generation
        await asyncio.sleep(self.chance.uniform(0, 1.0))
        if generation != self.door.generation:
            if self.chance.random() < 0.5:
                return  # its proxy has lost it for good
            epoch = await self._open(name, spec, epoch)
        await self._close(name, epoch)

    async def _open(self, name: str, spec: WillSpec, continues: int) -> int:
        """Open the session with the will, again if `continues` names an epoch of it; returns its epoch."""
        body = encode(SessionOpen(name, not continues, None, EXPIRY_S, spec, continues))
        try:
            answer = await self.door.ask(Code.SESSION_OPEN, body=body)
        except NoAnswer:
            self.door.close()  # what is opened for it later has no owner
            raise
        if answer.code != STORED:
            raise NoAnswer(answer.remark)
        self.state.settle(name, Fate.MUST)
        return int(decode(SessionOpened, answer.body).epoch)

    async def _close(self, name: str, epoch: int) -> None:
        chance = self.chance
        ends = chance.choice((WILL_DISCARD, WILL_DUE, None))
        if ends is None:  # the proxy dies with the connection
            self.door.close()
            return
        if ends == WILL_DISCARD:
            self.state.settle(name, Fate.MAY)
        body = encode(SessionClose(name, epoch, False, [], [], None, ends))
        answer = await self.door.ask(Code.SESSION_CLOSE, body=body)
        if answer.code == STORED and ends == WILL_DISCARD and not self.state.entries[name].is_seen:
            self.state.settle(name, Fate.NEVER)


class WillJudge(Client):
    """A proxy that judges wills."""

    def __init__(self, scene: Scene) -> None:
        self._watching = 0
        super().__init__(scene)
        self.door.on_push = self._pushed

    async def step(self) -> None:
        generation = self.door.generation
        if self._watching != generation:
            await self.door.ask(Code.WILL_WATCH)
            self._watching = generation
        await self.keep_alive()

    def _pushed(self, command: Command) -> None:
        if command.code == Code.WILL_DUE:
            self.scene.start(self._verdict(decode(WillDue, command.body)))

    async def _verdict(self, due: WillDue) -> None:
        await asyncio.sleep(self.chance.choice((0, 0, 0.3)) * self.chance.random())
        with suppress(NoAnswer):  # it is asked again
            await self.door.ask(Code.WILL_VERDICT, body=encode(WillVerdict(due.client_id, due.epoch, True, "")))


class QueueReader(Client):
    """A durable session that reads the queue of one filter from its beginning, offset by offset."""

    def __init__(self, scene: Scene, client_id: str, topic: str, topic_filter: str) -> None:
        self._client_id, self._topic, self._filter = client_id, topic, topic_filter
        self._queue = -1
        self.next = 0
        self.names: dict[int, str] = {}
        """Offset -> the name of the message there."""
        super().__init__(scene)

    @property
    def is_ready(self) -> bool:
        """Whether it has subscribed."""
        return self._queue >= 0

    async def step(self) -> None:
        if not self.is_ready:
            await self._subscribe()
        answer = await self.door.ask(Code.MULTI_PULL, body=encode_multi_pull([(self._queue, self.next, 100, 1 << 20)]))
        if answer.code != STORED:
            return
        (found,) = decode_multi_pull_reply(answer.body)
        for offset, record in enumerate(iter_records(found.blob), found.first_offset):
            self.names[offset] = name = name_of(record.body)
            self.state.seen(name, self.scene.now_ms(), f"{self._filter} {offset}")
        if found.next_offset > self.next:
            self.next = found.next_offset

    async def _subscribe(self) -> None:
        opened = await self.make(Code.SESSION_OPEN, body=encode(SessionOpen(self._client_id, False, None, EXPIRY_S)))
        epoch = decode(SessionOpened, opened.body).epoch
        wanted = SubscribeRequest(self._client_id, epoch, True, [FilterRequest(self._filter, QOS_1)])
        answer = await self.door.ask(Code.SUBSCRIBE, body=encode(wanted))
        if answer.code == STORED:
            (result,) = decode(Subscribed, answer.body).results
            self._queue, self.next = result.queue_id, result.offset
        else:
            raise NoAnswer(answer.remark)

    def account(self) -> None:
        """Nothing was there twice."""
        self.state.in_topic(self._topic, self.names.values(), self.scene.now_ms())
