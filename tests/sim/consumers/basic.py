"""What all clients of a simulation have in common: they repeat a step as long as the scene lasts, whatever fails."""

from __future__ import annotations

import asyncio
from typing import Any

from remoting.protocol.bodies.pull_body import encode_records_at
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.commands import Command
from tests.sim.consumers.door import Door, NoAnswer, Scene
from tests.support.consumer_state import Fate

AGAIN_S = 0.05
STORED = 0
KEPT_ALIVE = 0.1


class Client:
    """One client with its connection; `step` is repeated after pauses between `pause_s`."""

    pause_s = (0.03, 0.3)
    works_on = True
    """Whether it goes on while everything is drained."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.state, self.chance = scene, scene.state, scene.chance
        self.door: Door = scene.door()
        scene.start(self._run())

    async def _run(self) -> None:
        self.scene.senders += not self.works_on
        while not self.scene.is_over and (self.works_on or not self.scene.is_draining):
            await asyncio.sleep(self.scene.pace * self.chance.uniform(*self.pause_s))
            try:
                await self.step()
            except NoAnswer:
                await asyncio.sleep(AGAIN_S)
        self.scene.senders -= not self.works_on

    async def step(self) -> None:
        """Do something. May raise NoAnswer."""
        raise NotImplementedError

    async def keep_alive(self) -> None:
        """Now and then ask for nothing, so that a peer whose power is off is noticed. May raise NoAnswer."""
        if self.chance.random() < KEPT_ALIVE:
            await self.door.ask(Code.RECORDS_AT, body=encode_records_at([]))

    async def make(self, code: int, fields: dict[str, Any] | None = None, body: bytes = b"") -> Command:
        """Repeat a request that may be repeated until it is done."""
        while True:
            try:
                answer = await self.door.ask(code, fields, body)
                if answer.code == STORED:
                    return answer
            except NoAnswer:
                pass
            await asyncio.sleep(AGAIN_S)

    def settle(self, name: str, answer: Command, position: int = -1) -> None:
        """A message was sent, and this is the answer: a refusal leaves open what became of it."""
        if answer.code == STORED:
            self.state.settle(name, Fate.MUST, position)
