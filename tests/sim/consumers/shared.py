"""Shared subscriptions: members of proxies that acknowledge, give back, forget and come again."""

from __future__ import annotations

from remoting.protocol.bodies.packed import decode, encode
from remoting.protocol.bodies.session_body import (
    FilterRequest,
    SessionOpen,
    SessionOpened,
    SharedMember,
    SharedSettle,
    SharedSettled,
    SharedTake,
    SharedTaken,
    SubscribeRequest,
    decode_given,
)
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.record import RecordView
from tests.sim.consumers.basic import STORED, Client
from tests.sim.consumers.door import NoAnswer, Scene
from tests.sim.consumers.requests import QOS_1, name_of, publish
from tests.sim.consumers.wills import EXPIRY_S

TOPIC, NAME, GROUP = "cells/1", "$share/workers/cells/1", "shared"
CREDIT = 4


class SharedProxy(Client):
    """A proxy with one member."""

    def __init__(self, scene: Scene, number: int) -> None:
        self._client_id, self._handle = f"member-{number}", 0
        self._joined_in = 0
        self.has_joined = False
        """Whether its subscription exists: messages from then on are the group's."""
        self._held: dict[int, str] = {}
        super().__init__(scene)
        self.door.on_push = self._pushed
        self.door.on_lost = self._held.clear

    async def step(self) -> None:
        if self._joined_in != self.door.generation:
            await self._join()
            return
        await self.keep_alive()
        chance, done, back = self.chance, [], []
        for offset, name in list(self._held.items()):
            if self.scene.is_draining or chance.random() < 0.6:
                done.append(offset)
                self.state.acknowledging(GROUP, name)
            elif chance.random() < 0.3:
                back.append(offset)
        for offset in (*done, *back):
            del self._held[offset]
        if done or back:
            settled = SharedSettled(self._handle, len(done) + len(back), done, back)
            self.door.tell(Code.SHARED_SETTLE, body=encode(SharedSettle([settled])))
        elif chance.random() < 0.01 and not self.scene.is_draining:
            self.door.close()

    async def _join(self) -> None:
        self._held.clear()
        generation = self.door.generation
        opened = await self.door.ask(
            Code.SESSION_OPEN, body=encode(SessionOpen(self._client_id, False, None, EXPIRY_S))
        )
        if opened.code != STORED:
            raise NoAnswer(opened.remark)
        epoch = decode(SessionOpened, opened.body).epoch
        wanted = SubscribeRequest(self._client_id, epoch, True, [FilterRequest(NAME, QOS_1)])
        answer = await self.door.ask(Code.SUBSCRIBE, body=encode(wanted))
        if answer.code != STORED:
            raise NoAnswer(answer.remark)
        self.has_joined = True
        self._handle += 1
        member = SharedMember(self._handle, self._client_id, epoch, NAME, CREDIT, [])
        answer = await self.door.ask(Code.SHARED_TAKE, body=encode(SharedTake([member])))
        if answer.code == STORED and decode(SharedTaken, answer.body).joined == [True]:
            self._joined_in = generation

    def _pushed(self, command: Command) -> None:
        if command.code != Code.SHARED_GIVEN:
            return
        for handle, offset, data in decode_given(command.body):
            if handle == self._handle:
                self._held[offset] = name = name_of(RecordView(data).body)
                self.state.given(GROUP, name, self.scene.now_ms())


class Publisher(Client):
    """Publishes to the topic once somebody has subscribed."""

    works_on = False

    def __init__(self, scene: Scene, proxies: list[SharedProxy], topic: str = TOPIC) -> None:
        self._proxies, self._topic, self._number = proxies, topic, 0
        super().__init__(scene)

    async def step(self) -> None:
        if not any(each.has_joined for each in self._proxies):
            return
        self._number += 1
        name = f"{self._topic}-{self._number}"
        self.state.expect(name, self._topic)
        self.settle(name, await self.door.ask(Code.APPEND_MANY, body=publish(self._topic, name)))
