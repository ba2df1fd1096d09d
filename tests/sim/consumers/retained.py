"""Retained messages: writers that know the order of their values, and readers that must not see an old one."""

from __future__ import annotations

from remoting.protocol.bodies.packed import decode, encode
from remoting.protocol.bodies.pull_body import encode_records_at
from remoting.protocol.bodies.session_body import (
    FilterRequest,
    SessionOpen,
    SessionOpened,
    Subscribed,
    SubscribeRequest,
)
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.records.record import iter_records
from tests.sim.consumers.basic import STORED, Client
from tests.sim.consumers.door import NoAnswer, Scene
from tests.sim.consumers.requests import QOS_1, name_of, publish
from tests.sim.consumers.wills import EXPIRY_S

FILTER = "state/#"


class RetainedWriter(Client):
    """Writes one topic, value after value, and clears it now and then."""

    works_on = False
    pause_s = (0.05, 0.5)

    def __init__(self, scene: Scene, number: int) -> None:
        self._topic, self._number = f"state/{number}", 0
        super().__init__(scene)

    async def step(self) -> None:
        self._number += 1
        value = None if self.chance.random() < 0.2 else f"{self._topic}-{self._number}"
        number = self.state.retaining(self._topic, value)
        answer = await self.door.ask(Code.APPEND_MANY, body=publish(self._topic, value or "", retain=True))
        if answer.code == STORED:
            self.state.retained(self._topic, number)


class RetainedReader(Client):
    """Subscribes again and again, and reads what is retained at that moment."""

    pause_s = (0.1, 0.6)

    def __init__(self, scene: Scene, topics: int) -> None:
        self._topics = [f"state/{number}" for number in range(topics)]
        self._epoch = self._opened_in = 0
        super().__init__(scene)

    async def step(self) -> None:
        generation = self.door.generation
        if self._opened_in != generation:
            answer = await self.door.ask(Code.SESSION_OPEN, body=encode(SessionOpen("reader", True, None, EXPIRY_S)))
            if answer.code != STORED:
                return
            self._epoch, self._opened_in = decode(SessionOpened, answer.body).epoch, generation
        before = {topic: (self.state.retained_floor(topic), self.state.retained_asked(topic)) for topic in self._topics}
        found = await self._read()
        for topic in self._topics:
            floor, asked = before[topic]
            is_quiet = floor == asked == self.state.retained_asked(topic)
            if topic in found or is_quiet:  # one that was replaced meanwhile is left out
                self.state.read_retained(topic, found.get(topic), floor)

    async def _read(self) -> dict[str, str]:
        wanted = SubscribeRequest("reader", self._epoch, False, [FilterRequest(FILTER, QOS_1)])
        answer = await self.door.ask(Code.SUBSCRIBE, body=encode(wanted))
        if answer.code != STORED:
            raise NoAnswer(answer.remark)
        positions = [each for _index, at in decode(Subscribed, answer.body).retained for each in at]
        if not positions:
            return {}
        answer = await self.door.ask(Code.RECORDS_AT, body=encode_records_at(positions))
        if answer.code != STORED:
            raise NoAnswer(answer.remark)
        return {each.mqtt_topic.decode(): name_of(each.body) for each in iter_records(answer.body) if each.mqtt_topic}
