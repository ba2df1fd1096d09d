"""Messages mirrored back to the source of a migration: the property they carry there, and who may send them.

    LIGHTMQ_RETURNED = source | topic | queue number here | offset here | born time (ms) at the source

A message read at the source is one of ours if this names the queue that it would be copied to, and the born time is its
own. A consumer's retry has another topic, and an application that sends a message on with all its properties gives it
another born time: both are messages of the source.

One migration at a time mirrors a queue back: RocketMQ's brokers store what is sent twice twice. It holds the queue for
`CLAIM_MS` after each request; where one was killed, the next one waits so long, which is longer than RocketMQ's brokers
keep a request that has come.

Invariant: a queue has one holder at a time. `ReturnMark` is pure; `Holders` is used on the loop's thread.
"""

from __future__ import annotations

from dataclasses import dataclass

RETURNED_KEY = b"LIGHTMQ_RETURNED"
SEPARATOR = b"|"
DIGITS_MAX = 19
"""Digits of the largest offset."""
CLAIM_MS = 6_000
"""How long a migration holds a queue after its last request."""


@dataclass(frozen=True, slots=True)
class ReturnMark:
    """Where a message that is at the source came from."""

    source: str
    topic: str
    queue: int
    offset: int
    born_ms: int

    def encode(self) -> bytes:
        """The value of the property."""
        return f"{self.source}|{self.topic}|{self.queue}|{self.offset}|{self.born_ms}".encode()


def returned_offset(value: bytes, source: str, topic: str, queue: int, born_ms: int) -> int | None:
    """The offset here of a message with this property; None if it is not one of this queue's."""
    head, _, born = value.rpartition(SEPARATOR)
    head, _, offset = head.rpartition(SEPARATOR)
    if (
        head != f"{source}|{topic}|{queue}".encode()
        or not offset.isdigit()
        or len(offset) > DIGITS_MAX
        or born != b"%d" % born_ms
    ):
        return None
    return int(offset)


class Holders:
    """Who mirrors which queue back, as long as this broker leads."""

    def __init__(self) -> None:
        self._holders: dict[tuple[str, int], tuple[str, int]] = {}

    def take(self, queue: tuple[str, int], holder: str, now_ms: int) -> bool:
        """Hold the queue from now on; False when another one does."""
        known = self._holders.get(queue)
        if known is not None and known[0] != holder and now_ms < known[1]:
            return False
        self._holders[queue] = holder, now_ms + CLAIM_MS
        return True

    def forget(self, queue: tuple[str, int]) -> None:
        """Drop a queue that was deleted."""
        self._holders.pop(queue, None)
