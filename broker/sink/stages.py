"""Staged attempts of sinks: rows that a Spark task has written but its batch has not committed.

Each attempt is a hidden queue of the log, named `0x01 stage 0x00 sink 0x00 batch 0x00 partition 0x00 attempt`; its
records carry the STAGED flag and are dispatched to that queue alone, so no reader of any topic can see them. The
record's producer_seq has what is needed to place it later, see `remoting.protocol.records.staged`. A staged batch stays
a batch, so the hidden queue counts messages as the queues of its topic will. Because attempts are ordinary queues they
survive kill -9 without a table of their own. Invariant: no pull reads a hidden queue. Loop thread only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode

if TYPE_CHECKING:
    from broker.store.log_store import LogStore

STAGE_PREFIX = b"\x01stage\x00"
SINK_NAME_BYTES_MAX = 255
KEPT_EXPIRY_FACTOR = 7
"""Rows prepared for a commit are kept this many times longer than others: it may be decided already."""


@dataclass(frozen=True, slots=True)
class AttemptKey:
    """The identity of one attempt."""

    sink: str
    batch: int
    partition: int
    attempt: int

    def queue_name(self) -> bytes:
        """Store name of the hidden queue."""
        numbers = (self.batch, self.partition, self.attempt)
        return STAGE_PREFIX + b"\x00".join((self.sink.encode(), *(str(number).encode() for number in numbers)))


@dataclass(slots=True)
class Attempt:
    """One attempt: its hidden queue, when rows last came, and whether a commit of it is prepared."""

    queue_id: int
    seen_ms: int
    kept: bool = False


def parse_queue_name(name: bytes) -> AttemptKey:
    """The attempt a hidden queue belongs to."""
    sink, batch, partition, attempt = name[len(STAGE_PREFIX) :].split(b"\x00")
    return AttemptKey(sink.decode(), int(batch), int(partition), int(attempt))


def check_sink(sink: str) -> None:
    """Refused when a sink's name cannot be part of a queue name."""
    if not sink or "\x00" in sink or len(sink.encode()) > SINK_NAME_BYTES_MAX:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"sink name {sink!r} is empty, too long, or has a zero byte")


class Stages:
    """All staged attempts and their hidden queues."""

    def __init__(self, store: LogStore, hidden: set[int], *, expiry_ms: int, attempts_max: int, now_ms: int) -> None:
        """`hidden`: queues that readers never see; those of the attempts are added while they exist."""
        self._store = store
        self._expiry_ms = expiry_ms
        self._attempts_max = attempts_max
        self._attempts: dict[AttemptKey, Attempt] = {}
        self._hidden = hidden
        self.expired = 0
        for name in store.state.queues.with_prefix(STAGE_PREFIX):
            queue_id = store.queues.find(name)
            if queue_id is not None:
                self._attempts[parse_queue_name(name)] = Attempt(queue_id, now_ms)
                self._hidden.add(queue_id)

    def __len__(self) -> int:
        return len(self._attempts)

    def find(self, key: AttemptKey) -> Attempt | None:
        """The attempt, or None when nothing is staged under that key."""
        return self._attempts.get(key)

    def staged(self, key: AttemptKey) -> int:
        """Rows staged so far, confirmed or not."""
        attempt = self._attempts.get(key)
        return self._store.reading.next_offset(attempt.queue_id) if attempt is not None else 0

    def open(self, key: AttemptKey, now_ms: int) -> Attempt:
        """The attempt, created with its hidden queue on first use."""
        attempt = self._attempts.get(key)
        if attempt is None:
            check_sink(key.sink)
            if len(self._attempts) >= self._attempts_max:
                raise Refused(ResponseCode.SYSTEM_BUSY, f"stage_attempts_max {self._attempts_max} attempts are staged")
            attempt = Attempt(self._store.queues.open(key.queue_name()), now_ms)
            self._attempts[key] = attempt
            self._hidden.add(attempt.queue_id)
        attempt.seen_ms = now_ms
        return attempt

    def drop(self, sink: str, batch_max: int) -> int:
        """Delete all attempts of a sink up to and including a batch; returns how many."""
        return self._delete([key for key in self._attempts if key.sink == sink and key.batch <= batch_max])

    def abort(self, sink: str, batch: int) -> int:
        """Delete all attempts of one batch but those prepared for its commit; returns how many."""
        found = [key for key, item in self._attempts.items() if key.sink == sink and key.batch == batch]
        return self._delete([key for key in found if not self._attempts[key].kept])

    def expire(self, now_ms: int) -> int:
        """Delete the attempts not written to for `expiry_ms`, prepared ones later; returns how many."""
        stale = [key for key, item in self._attempts.items() if now_ms - item.seen_ms >= self._expiry_of(item)]
        count = self._delete(stale)
        self.expired += count
        return count

    def keep(self, key: AttemptKey) -> None:
        """Keep an attempt for a prepared commit."""
        attempt = self._attempts.get(key)
        if attempt is not None:
            attempt.kept = True

    def _expiry_of(self, attempt: Attempt) -> int:
        return self._expiry_ms * KEPT_EXPIRY_FACTOR if attempt.kept else self._expiry_ms

    def _delete(self, keys: list[AttemptKey]) -> int:
        for key in keys:
            attempt = self._attempts.pop(key)
            self._hidden.discard(attempt.queue_id)
            self._store.queues.delete([attempt.queue_id])
        return len(keys)
