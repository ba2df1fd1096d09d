"""The writer of the twin in place: one call writes, indexes and publishes a batch, or leaves everything unchanged."""

from __future__ import annotations

import errno
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from broker.store.placed import Placed, parts_of
from remoting.native import core as native
from remoting.native.contracts import COUNT_AT, END_AT, KEPT_BYTES_MAX
from remoting.protocol.errors import LocalMisuse, RecordTooLarge
from tests.sim.batches import CAPACITY, QUEUES, Bench, seen
from tests.support.images import placed

SIZE = 1 << 22


class PenBench(Bench):
    """One twin with a writer for one file."""

    def open(self, path: Path, limit: int = SIZE) -> PenBench:
        """Direct it to a new file of zeros."""
        path.write_bytes(bytes(SIZE))
        self.segment = SIZE
        self.path, self.descriptor = path, os.open(path, os.O_RDWR)
        self.counters = memoryview(bytearray(48)).cast("q")
        self.encoder = self.core.make_encoder(3, SIZE // 2, 8)
        self.writer = self.core.make_segment_writer(self.encoder)
        self.writer.aim(self.ring, QUEUES, self.counters, self.descriptor, 0, limit)
        return self

    def write(self, batch: list[Placed], *, atomic: bool = False, first: int = 1):
        """Write after what was written."""
        made = self.writer.write(*parts_of(batch), atomic, 77, self.position, first, self.number)
        if made is not None:
            self.position = made.end_position
            self.number += len(made.entries)
        return made

    def state(self) -> tuple[object, ...]:
        """All that an append may change."""
        return self.rows.tolist(), self.slots.tolist(), self.queues.tolist(), self.counters.tolist()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[PenBench]:
    made = PenBench(native.core).open(tmp_path / "file")
    yield made
    os.close(made.descriptor)


def message(queues: tuple[int, ...] = (0, 1), body: bytes = b"x") -> Placed:
    return placed(queues, body)


@pytest.mark.parametrize("atomic", [False, True])
def test_it_equals_encoding_writing_and_storing(bench: PenBench, atomic: bool) -> None:
    """The same bytes in the file, the same entries in the ring; the counters agree."""
    other, whole = Bench(native.core), b""
    other.segment = SIZE
    for count in (1, 3, 30):
        batch = [message((n % 3,), bytes(n)) for n in range(count)]
        ours, theirs = bench.write(batch, atomic=atomic), other.encode(batch, atomic=atomic)
        other.ring.store(theirs.entries, 1, other.number)
        other.number += count
        whole += theirs.pieces[0][1]
        assert seen(ours) == seen(theirs)
        assert (bench.counters[COUNT_AT], bench.counters[END_AT]) == (other.number, other.position)
    assert bench.path.read_bytes() == whole + bytes(SIZE - len(whole))
    assert bench.slots.tolist() == other.slots.tolist()
    assert bench.rows.tolist() == other.rows.tolist()


def test_what_does_not_fit_is_left_alone(bench: PenBench) -> None:
    """Beyond the limit, nearly at it, more entries than free slots, nothing at all."""
    good = message()
    size = bench.write([good]).end_position
    bench.writer.aim(bench.ring, QUEUES, bench.counters, bench.descriptor, 0, 3 * size)
    before = bench.state()
    assert bench.write([]) is None
    assert bench.write([good] * 3) is None
    assert bench.write([message(body=bytes(80))]) is None  # what it leaves is too small for a filler
    assert bench.write([good], first=bench.number - CAPACITY + 1) is None
    assert bench.state() == before
    assert bench.path.read_bytes()[size:] == bytes(SIZE - size)
    assert bench.write([good] * 2).end_position == 3 * size
    assert bench.write([good]) is None
    bench.writer.aim(bench.ring, QUEUES, bench.counters, bench.descriptor, 8 * size, 9 * size)
    assert bench.write([good]) is None


@pytest.mark.parametrize(
    ("wrong", "error"),
    [(message((QUEUES,)), LocalMisuse), (message((0,) * 9), LocalMisuse), (message(body=bytes(SIZE)), RecordTooLarge)],
)
def test_refusals_change_nothing(bench: PenBench, wrong: Placed, error: type) -> None:
    """Rows, ring, counters and file are unchanged."""
    before = bench.state()
    with pytest.raises(error):
        bench.write([message(), wrong])
    assert bench.state() == before
    assert not any(bench.path.read_bytes())


def test_a_failed_write_undoes_the_offsets(bench: PenBench) -> None:
    """The caller learns how many bytes may be in the file; the next write is another one."""
    before = bench.state()
    reader = os.open(bench.path, os.O_RDONLY)
    bench.writer.aim(bench.ring, QUEUES, bench.counters, reader, 0, SIZE)
    with pytest.raises(OSError) as caught:
        bench.write([message()])
    os.close(reader)
    assert (caught.value.errno, bench.writer.attempted) == (errno.EBADF, 128)
    assert bench.state() == before


@contextmanager
def files_at_most(size: int) -> Iterator[None]:
    """Let the kernel write files up to `size` only: the write that crosses it is short, the next one fails."""
    before, kept = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, kept)


@pytest.mark.parametrize("count", [2, 400])
def test_a_short_write_continues_until_it_fails(bench: PenBench, count: int) -> None:
    """With and without the interpreter's lock."""
    batch = [message((), bytes(200))] * count
    bench.write(batch[:1])
    before = bench.state()
    with files_at_most(bench.position + 100), pytest.raises(OSError) as caught:
        bench.write(batch)
    assert (caught.value.errno, bench.writer.attempted) == (errno.EFBIG, count * bench.position)
    assert bench.state() == before
    size = bench.position
    assert bench.write(batch).end_position == (count + 1) * size


def test_large_batches_do_not_keep_their_bytes(bench: PenBench) -> None:
    """Small ones do, for readers of what was just written."""
    body = bytes(KEPT_BYTES_MAX // 2)
    assert [len(piece) for _, piece in bench.write([message(body=body)]).pieces] == [len(body) + 120]
    assert bench.write([message(body=body)] * 3).pieces == []
