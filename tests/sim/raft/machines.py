"""Machines whose whole state is what was applied, in order."""

from __future__ import annotations

import msgspec

from controller.consensus.engine import DeduplicatedMachine, Envelope
from controller.replicas.group import ApplyBrokerId, Outcome, encode
from remoting.access.agreement import AgreedTable

RAISING = "raise"
"""A word that begins so makes the inner machine raise."""


class Words:
    """Remembers its commands."""

    def __init__(self) -> None:
        self.words: list[bytes] = []
        self.restored = 0

    def apply(self, data: bytes) -> int:
        self.words.append(bytes(data))
        return len(self.words)

    def encode(self) -> bytes:
        return b",".join(self.words)

    def restore(self, data: bytes) -> None:
        self.words = data.split(b",") if data else []
        self.restored += 1


class Recorder:
    """In the place of the groups' machine: remembers what reached it."""

    def __init__(self) -> None:
        self.words: list[bytes] = []
        self.groups: dict[str, object] = {}
        self.users = AgreedTable()
        self.restored = 0

    def apply(self, command: ApplyBrokerId) -> Outcome:
        if command.check_code.startswith(RAISING):
            raise RuntimeError(command.check_code)
        self.words.append(command.check_code.encode())
        return Outcome(remark=str(len(self.words)))

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self.words)

    def restore(self, data: bytes) -> None:
        self.words = msgspec.msgpack.decode(data, type=list[bytes])
        self.restored += 1


class Commands(DeduplicatedMachine):
    """The product's own machine of repeated commands around a recorder."""

    def __init__(self) -> None:
        super().__init__(Recorder())

    @property
    def words(self) -> list[bytes]:
        return self.machine.words

    @property
    def restored(self) -> int:
        return self.machine.restored


def in_envelope(client: str, request: int, word: str) -> bytes:
    """A command as controllers propose it."""
    return msgspec.msgpack.encode(Envelope(client, request, encode(ApplyBrokerId("C", "g", 1, word))))
