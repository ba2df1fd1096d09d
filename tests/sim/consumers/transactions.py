"""Transactions: what is committed is there once, what is rolled back or left open never."""

from __future__ import annotations

import json
from contextlib import suppress

from remoting.client.admin import topic_fields
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.stored_message import iter_stored
from tests.sim.consumers.basic import STORED, Client
from tests.sim.consumers.door import NoAnswer, Scene
from tests.sim.consumers.requests import body_of, name_of, sending
from tests.support.consumer_state import Fate

TOPIC, GROUP = "paid", "payers"
COMMIT, ROLL_BACK = 8, 12
HALF_FLAG = 4


class TransactionProducer(Client):
    """Sends half messages and decides them at once, when it is asked, or never.

    A decision is fixed before it is told for the first time, and told again until it is answered or the scene ends.
    """

    def __init__(self, scene: Scene, number: int = 1) -> None:
        self._who, self._number = number, 0
        self._registered = 0
        self._is_done = False
        scene.senders += 1
        self._decisions: dict[str, int | None] = {}
        """Name -> how it ends; None: it stays open."""
        self._promised: set[str] = set()
        """Stored half messages that are to be committed, at once or when it is asked."""
        super().__init__(scene)
        self.door.on_push = self._pushed

    async def step(self) -> None:
        if self._registered != self.door.generation:
            await self._register()
        if self.scene.is_draining:
            self._send_no_more()
            await self.keep_alive()
            return
        self._number += 1
        name = f"{TOPIC}-{self._who}-{self._number}"
        self.state.expect(name, TOPIC, Fate.NEVER)
        decision = self._decisions[name] = self.chance.choice((COMMIT, COMMIT, ROLL_BACK, None))
        key = b"%08d%024d" % (self._who, self._number)
        fields = sending(TOPIC, 0, [(b"TRAN_MSG", b"true"), (b"PGROUP", GROUP.encode()), (b"UNIQ_KEY", key)], HALF_FLAG)
        sent = await self.door.ask(Code.SEND_MESSAGE_V2, fields, body_of(name))
        if sent.code == STORED and decision == COMMIT:
            self._promised.add(name)
        if sent.code == STORED and decision is not None and self.chance.random() < 0.7:
            await self._end(name, int(sent.fields["queueOffset"]), int(sent.fields["msgId"][16:], 16))

    def _send_no_more(self) -> None:
        if not self._is_done:
            self._is_done = True
            self.scene.senders -= 1
            for name in self._promised:
                self.state.settle(name, Fate.MUST)

    async def _register(self) -> None:
        await self.make(Code.UPDATE_AND_CREATE_TOPIC, topic_fields(TOPIC, 1))
        generation = self.door.generation
        body = {"clientID": f"payer@{self._who}", "producerDataSet": [{"groupName": GROUP}]}
        await self.make(Code.HEART_BEAT, body=json.dumps(body).encode())
        self._registered = generation

    async def _end(self, name: str, offset: int, position: int) -> None:
        decision = self._decisions[name]
        fields = {"topic": TOPIC, "producerGroup": GROUP, "tranStateTableOffset": offset, "commitLogOffset": position,
                  "commitOrRollback": decision, "msgId": ""}  # fmt: skip
        if decision == COMMIT and self.state.entries[name].fate is Fate.NEVER:
            self.state.settle(name, Fate.MAY)
        answer = await self.door.ask(Code.END_TRANSACTION, fields)
        if answer.code == ResponseCode.SUCCESS and decision == COMMIT:
            self.state.settle(name, Fate.MUST)

    def _pushed(self, command: Command) -> None:
        """The broker asks how a transaction ends; what nobody has time to receive any more stays open."""
        if command.code != Code.CHECK_TRANSACTION_STATE or self.scene.is_over:
            return
        (message,) = iter_stored(command.body)
        name = name_of(message.body)
        if self._decisions.get(name) is not None:
            fields = command.fields
            self.scene.start(self._told(name, int(fields["tranStateTableOffset"]), int(fields["commitLogOffset"])))

    async def _told(self, name: str, offset: int, position: int) -> None:
        with suppress(NoAnswer):  # it is asked again
            await self._end(name, offset, position)
