"""POP: producers and consumers of a topic, in order or not, whose groups acknowledge some and forget others."""

from __future__ import annotations

import json

from remoting.client.admin import topic_fields
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from tests.sim.consumers.basic import STORED, Client
from tests.sim.consumers.door import Scene
from tests.sim.consumers.requests import Popped, body_of, name_of, popped, popping, position_of, pulled, sending

QUEUES = 2
INVISIBLE_MS = (300, 1_000, 2_000)
DLQ = "%DLQ%"


class QueueProducer(Client):
    """Sends numbered messages to the queues of a topic, each once."""

    works_on = False

    def __init__(self, scene: Scene, topic: str, filling: int = 0) -> None:
        """With `filling` so many bytes are added to each, and nobody is owed them."""
        self._topic, self._filling, self._number = topic, filling, 0
        self._is_made = False
        super().__init__(scene)

    async def step(self) -> None:
        if not self._is_made:
            await self.make(Code.UPDATE_AND_CREATE_TOPIC, topic_fields(self._topic, QUEUES))
            self._is_made = True
        self._number += 1
        name = f"{self._topic}-{self._number}"
        fields = sending(self._topic, self.chance.randrange(QUEUES))
        if self._filling:
            await self.door.ask(Code.SEND_MESSAGE_V2, fields, body_of(name, self._filling))
            return
        self.state.expect(name, self._topic)
        answer = await self.door.ask(Code.SEND_MESSAGE_V2, fields, body_of(name))
        self.settle(name, answer, position_of(answer) if answer.code == STORED else -1)


class PopConsumer(Client):
    """One consumer of a group; acknowledges a share of what it gets, all of it while everything is drained."""

    def __init__(
        self, scene: Scene, group: str, topic: str, number: int = 1, *, in_order: bool = False, share: float = 0.7
    ) -> None:
        self._group, self._topic, self._number = group, topic, number
        self._in_order, self._share = in_order, share
        self._attempts = 0
        super().__init__(scene)

    async def step(self) -> None:
        chance, more = self.chance, {}
        if self._in_order:
            self._attempts += 1
            more = {"order": "true", "attemptId": f"{self._number}-{self._attempts}"}
        count, invisible_ms = chance.choice((1, 4, 32)), invisible_ms_of(self)
        asked = self.state.asks()
        answer = await self.door.ask(Code.POP_MESSAGE, popping(self._group, self._topic, count, invisible_ms, **more))
        messages = popped(answer)
        for each in messages:
            self.state.given(self._group, each.name, self.scene.now_ms(), asked)
            if self._in_order:
                self.state.in_order(self._group, f"{each.topic} {each.queue}", each.offset, each.name)
        for each in messages:
            await self._treat(each)

    async def _treat(self, message: Popped) -> None:
        chance = self.chance
        if self.scene.is_draining or chance.random() < self._share:
            await acknowledge(self, self._group, message)
        elif chance.random() < 0.3:
            fields = message.fields(self._group, invisibleTime=invisible_ms_of(self) // 3)
            await self.door.ask(Code.CHANGE_MESSAGE_INVISIBLETIME, fields)


def invisible_ms_of(client: Client) -> int:
    """How long what the client gets now is its own."""
    return int(client.chance.choice(INVISIBLE_MS) * client.scene.pace)


async def acknowledge(client: Client, group: str, message: Popped, **more: object) -> None:
    """Acknowledge a message, and note what that is worth."""
    state = client.state
    state.acknowledging(group, message.name)
    answer = await client.door.ask(Code.ACK_MESSAGE, message.fields(group, **more))
    if answer.code == STORED:
        state.acknowledged(group, message.name)
    elif answer.code == ResponseCode.NO_MESSAGE:
        state.not_acknowledged(group, message.name)


async def make_group(client: Client, group: str, tries_max: int) -> None:
    """Make a group that gives a message up after so many repetitions."""
    body = json.dumps({"groupName": group, "retryMaxTimes": tries_max}).encode()
    await client.make(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)


class Gravedigger(Client):
    """Makes a group that gives up after so many repetitions, and looks for its dead letters."""

    pause_s = (0.2, 0.8)

    def __init__(self, scene: Scene, group: str, tries_max: int) -> None:
        self._group, self._tries_max = group, tries_max
        self._next = 0
        self._is_made = False
        super().__init__(scene)

    async def step(self) -> None:
        if not self._is_made:
            await make_group(self, self._group, self._tries_max)
            self._is_made = True
        for message in await pulled(self.door, DLQ + self._group, 0, self._next):
            self._next = message.queue_offset + 1
            self.state.buried(self._group, name_of(message.body), self.scene.now_ms())
