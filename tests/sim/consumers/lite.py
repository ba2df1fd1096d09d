"""Lite topics: a group's clients that take them in order and acknowledge some of what they get."""

from __future__ import annotations

import json

from remoting.client.admin import topic_fields
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.records.stored_message import iter_stored
from tests.sim.consumers.basic import STORED, Client
from tests.sim.consumers.door import Scene
from tests.sim.consumers.pop import acknowledge, invisible_ms_of
from tests.sim.consumers.requests import Popped, body_of, position_of, sending

PARENT, GROUP = "agents", "lite"
TOPICS = ("north", "south")
OFFSET = b"INNER_MULTI_QUEUE_OFFSET"
LITE_TOPIC = b"__LITE_TOPIC"


class LiteConsumer(Client):
    """One client of the group, subscribed to every lite topic."""

    def __init__(self, scene: Scene, number: int) -> None:
        self._client_id = f"lite-{number}"
        self._subscribed_in = 0
        self.has_subscribed = False
        """Whether the group exists, with its subscription: what is sent from then on is for it."""
        super().__init__(scene)

    async def step(self) -> None:
        if self._subscribed_in != self.door.generation:
            await self._subscribe()
        chance = self.chance
        fields = {
            "clientId": self._client_id, "consumerGroup": GROUP, "topic": PARENT,
            "maxMsgNum": chance.choice((1, 4, 32)), "invisibleTime": invisible_ms_of(self),
            "pollTime": 0, "bornTime": 0,
        }  # fmt: skip
        asked = self.state.asks()
        answer = await self.door.ask(Code.POP_LITE_MESSAGE, fields)
        if answer.code != STORED:
            return
        taken = []
        for stored in iter_stored(answer.body):
            properties = {bytes(key): bytes(value) for key, value in stored.properties}
            message, lite_topic = Popped(stored, answer, int(properties[OFFSET])), properties[LITE_TOPIC].decode()
            self.state.given(GROUP, message.name, self.scene.now_ms(), asked)
            self.state.in_order(GROUP, lite_topic, message.offset, message.name)
            taken.append((message, lite_topic))
        for message, lite_topic in taken:
            if self.scene.is_draining or chance.random() < 0.6:
                await acknowledge(self, GROUP, message, topic=PARENT, liteTopic=lite_topic)

    async def _subscribe(self) -> None:
        fields = topic_fields(PARENT, 2, attributes={"message.type": "LITE"})
        await self.make(Code.UPDATE_AND_CREATE_TOPIC, fields)
        body = {"groupName": GROUP, "attributes": {"+lite.bind.topic": PARENT}}
        await self.make(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=json.dumps(body).encode())
        generation = self.door.generation
        entry = {"action": "PARTIAL_ADD", "clientId": self._client_id, "group": GROUP, "topic": PARENT,
                 "liteTopicSet": [*TOPICS]}  # fmt: skip
        await self.make(Code.LITE_SUBSCRIPTION_CTL, body=json.dumps({"subscriptionSet": [entry]}).encode())
        self.has_subscribed, self._subscribed_in = True, generation


class LiteProducer(Client):
    """Sends to lite topics once somebody has subscribed."""

    works_on = False

    def __init__(self, scene: Scene, consumers: list[LiteConsumer]) -> None:
        self._consumers, self._number = consumers, 0
        super().__init__(scene)

    async def step(self) -> None:
        if not any(each.has_subscribed for each in self._consumers):
            return
        self._number += 1
        name = f"{PARENT}-{self._number}"
        self.state.expect(name, PARENT)
        fields = sending(PARENT, -1, [(LITE_TOPIC, self.chance.choice(TOPICS).encode())])
        answer = await self.door.ask(Code.SEND_MESSAGE_V2, fields, body_of(name))
        self.settle(name, answer, position_of(answer) if answer.code == STORED else -1)
