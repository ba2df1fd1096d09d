"""The logs of successive masters for a replica whose power is cut: each log continues the one before.

A master is a real store that is closed before its replica is forked. Its successor keeps the log up to the end of some
group, or all of it, and appends in a new epoch, sometimes in files of another size; some let old files expire.
Invariant: the confirmed part of a history is unchanged in all later ones; nothing is promised about what follows it.
"""

from __future__ import annotations

import random
import struct
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path

from broker.replication.frames import (
    NO_PROOF,
    NONCE_BYTES,
    Greeting,
    Transfer,
    Welcome,
    encode_greeting,
    encode_transfer_head,
    encode_welcome,
)
from broker.store.log.epoch_file import Epoch, epoch_at
from broker.store.log_store import LogStore
from tests.fuzz.workload import operation
from tests.sim.replicas import ReplicaBench, log_bytes
from tests.sim.stores import Silent

OPERATIONS_PER_EPOCH = 10_000
KIB = 1024
FLAGS_AT, GROUP_OPEN, FILLER = 48, 0x10, 4
"""In a record: position of its flags, flag of a group that continues, type that fills the rest of a file."""


@dataclass(frozen=True)
class History:
    """The log of one master at the end of its epoch."""

    epoch: int
    begin: int
    """Everything below has expired there."""
    end: int
    confirm: int
    """Its successor begins here or behind."""
    epochs: list[Epoch]
    files: list[tuple[int, int]]
    """(first position, size)."""
    records: list[int]
    """Where records end, fillers too, from `begin` on."""
    groups: list[int]
    """Where whole groups end."""
    data: bytes
    """From position 0, with what others had where this one has let it expire."""

    def handshake(self) -> bytes:
        """What a replica receives first."""
        welcome = Welcome(self.epoch, self.begin, self.end, self.epochs)
        return encode_greeting(Greeting(bytes(NONCE_BYTES))) + encode_welcome(welcome, lambda _: NO_PROOF)

    def transfer(self, position: int, wanted_bytes: int) -> bytes:
        """The bytes from `position` on: whole records of one epoch and one file, about as many as wanted."""
        base, size = next(each for each in reversed(self.files) if each[0] <= position)
        epoch, next_start = epoch_at(self.epochs, position)
        start = max(each for _, each in self.epochs if each <= position)
        limit = min(self.end, base + size, self.end if next_start is None else next_start)
        at = bisect_right(self.records, position)
        stop = max(self.records[at], self._record_below(position + wanted_bytes))
        data = self.data[position : min(stop, limit)]
        head = Transfer(epoch, start, position, self.confirm, base, size, data)
        return encode_transfer_head(head) + data

    def heartbeat(self) -> bytes:
        """What a replica receives when there is nothing new."""
        return encode_transfer_head(Transfer(self.epoch, self.end, self.end, self.confirm, self.end, 0, b""))

    def _record_below(self, position: int) -> int:
        at = bisect_right(self.records, position)
        return self.records[at - 1] if at else 0


class Histories:
    """One master after the other, created in `place` on demand."""

    def __init__(self, place: Path, seed: str) -> None:
        self._place = place / "master"
        self._chance = random.Random(seed)
        self._workload = self._chance.randrange(1 << 30)
        self._bench: ReplicaBench | None = None
        self.made: list[History] = []
        self._fork = 0

    def at(self, number: int) -> History:
        """The log of master `number`."""
        while len(self.made) <= number:
            self.made.append(self._next())
        return self.made[number]

    def _next(self) -> History:
        chance, epoch = self._chance, 2 * len(self.made) + 1
        bench = self._opened(epoch)
        ends = [bench.store.end_position]
        first = OPERATIONS_PER_EPOCH * epoch
        numbers = range(first, first + chance.choice((0, 2, 20, 60)))
        ends += [_write(bench.store, number, self._workload) for number in numbers]
        if chance.random() < 0.3:
            _expire(bench)
            ends.append(bench.store.end_position)
        bench.flush()
        later = [end for end in ends if end >= max(self._fork, bench.store.confirm_position)]
        self._fork = chance.choice((later[-1], chance.choice(later)))
        bench.store.positions.limit_confirm(self._fork)
        made = self._history(epoch, bench.store)
        bench.close()
        return made

    def _opened(self, epoch: int) -> ReplicaBench:
        chance = self._chance
        sizes = {
            "segment_size_bytes": chance.choice((8, 16, 32)) * KIB, "record_size_bytes_max": 4 * KIB,
            "first_segment_size_bytes": 4 * KIB, "retention_size_bytes": 60 * KIB,
        }  # fmt: skip
        if self._bench is None:
            self._bench = ReplicaBench(self._place, log=Silent(), epoch=epoch, **sizes)
            return self._bench
        self._bench.with_settings(**sizes)
        self._bench.open(role="replica")
        self._bench.store.replica.truncate(self._fork)
        self._bench.reopen_as(epoch=epoch)
        return self._bench

    def _history(self, epoch: int, store: LogStore) -> History:
        files = [(int(name), data) for name, data in log_bytes(store.directory).items()]
        begin, end = store.begin_position, store.end_position
        former = self.made[-1].data if self.made else b""
        data = former[:begin].ljust(begin, b"\0") + b"".join(each for _, each in files)[: end - begin]
        return History(
            epoch, begin, end, self._fork, store.replica.epochs, [(base, len(each)) for base, each in files],
            *_ends(data, begin), data,
        )  # fmt: skip


def _write(store: LogStore, number: int, workload: int) -> int:
    done = operation(number, workload)
    names = done.names()
    ids = dict(zip(names, store.queues.open_all(names), strict=True))
    return store.append(*done.messages(number, ids), changes=done.changes).end_position


def _expire(bench: ReplicaBench) -> None:
    """Expire what the settings allow; what is appended again for that is confirmed."""
    for _ in range(15):
        bench.flush()
        bench.store.positions.limit_confirm(bench.store.end_position)
        bench.store.maintain(0)
        bench.store._site.thread.drain()
        bench.turn()


def _ends(data: bytes, begin: int) -> tuple[list[int], list[int]]:
    """Where records and where whole groups end."""
    records, groups, at = [], [], begin
    while at < len(data):
        total, magic = struct.unpack_from("<II", data, at)
        (flags,) = struct.unpack_from("<I", data, at + FLAGS_AT)
        at += total
        records.append(at)
        if magic & 0xFF != FILLER and not flags & GROUP_OPEN:
            groups.append(at)
    assert not records or records[-1] == len(data), (records[-1], len(data))
    return records, groups
