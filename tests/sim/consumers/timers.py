"""Delayed messages: each is delivered once, not before its time, unless it was recalled."""

from __future__ import annotations

from remoting.client.admin import topic_fields
from remoting.protocol.frames.codes import RequestCode as Code
from tests.sim.consumers.basic import STORED, Client
from tests.sim.consumers.door import Scene
from tests.sim.consumers.requests import body_of, sending
from tests.support.consumer_state import Fate

TOPIC = "timed"
DELAYS_MS = (300, 1_500, 5_000)
RECALLED = 0.25


class TimerProducer(Client):
    """Sends messages with a delay, and recalls some of them."""

    works_on = False

    def __init__(self, scene: Scene, number: int = 1) -> None:
        self._who, self._number = number, 0
        self._is_made = False
        super().__init__(scene)

    async def step(self) -> None:
        if not self._is_made:
            await self.make(Code.UPDATE_AND_CREATE_TOPIC, topic_fields(TOPIC, 1))
            self._is_made = True
        self._number += 1
        name, delay_ms = f"{TOPIC}-{self._who}-{self._number}", self.chance.choice(DELAYS_MS)
        self.state.expect(name, TOPIC, not_before_ms=self.scene.now_ms() + delay_ms)
        key = b"%08d%024d" % (self._who, self._number)
        fields = sending(TOPIC, 0, [(b"UNIQ_KEY", key), (b"TIMER_DELAY_MS", b"%d" % delay_ms)])
        answer = await self.door.ask(Code.SEND_MESSAGE_V2, fields, body_of(name))
        self.settle(name, answer)
        handle = answer.fields.get("recallHandle")  # none where it is due at once, by the broker's clock
        if handle is not None and self.chance.random() < RECALLED:
            await self._recall(name, handle)

    async def _recall(self, name: str, handle: str) -> None:
        """A recall that is answered holds; one that is not may."""
        self.state.settle(name, Fate.MAY)
        fields = {"producerGroup": "senders", "topic": TOPIC, "recallHandle": handle, "bname": "broker-a"}
        answer = await self.door.ask(Code.RECALL_MESSAGE, fields)
        if answer.code == STORED:
            self.state.settle(name, Fate.NEVER)
