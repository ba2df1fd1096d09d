"""A store read from outside against lists, with the writer at work between any two reads of the reader.

The reader's four places where it looks at what the writer changes (the MANIFEST, the tail's queue ids, the tail's last
check, the directory of the log) are doors: before and behind each the writer may append, make runs, merge, let records
expire, grow, or start again, as the example says. Whatever happens in there, an answer is a true piece of the list, or
there is none. LIGHTMQ_ATTACHED_EXAMPLES=3000 makes it long.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.store.attached.store import AttachedStore, LogView, RunSet, TailView
from broker.store.errors import Unsettled
from broker.store.index.reader import OFFSET_TOO_SMALL, OK
from remoting.native import core as native
from remoting.protocol.records.record import FLAG_FORMAT_SHIFT, RecordView, check_record
from tests.sim.stores import StoreBench, drain, message

EXAMPLES = int(os.environ.get("LIGHTMQ_ATTACHED_EXAMPLES", "60"))
MEMORY = Path("/dev/shm")
QUEUES = 4
DOORS = ((RunSet, "load"), (TailView, "_numbers_of"), (TailView, "_check"), (LogView, "_list_segments"))


class World:
    """A writer, its lists, a reader."""

    def __init__(self, directory: Path) -> None:
        self.bench = StoreBench(directory, segment_size_bytes=8192, index_tail_entries=32, flush="async")
        self.queues = self.bench.store.queues.open_all([b"q%d" % n for n in range(QUEUES)])
        self.bench.settle()
        self.lists: dict[int, list[tuple[int, int, bytes]]] = {queue: [] for queue in self.queues}
        """Queue -> (offset, count, body) of what is confirmed."""
        self.made = 0
        self.attached = AttachedStore(directory)
        self.plan: Iterator[int] = iter(())
        self._busy = False
        self._claims: list[tuple[int, int]] | None = None

    def writer(self, action: int) -> None:
        """One move of the writer."""
        moves: list[Callable[[int], None]] = [
            self.append, self.append, self.append, self.append, self.run, self.expire, self.grow, self.restart
        ]  # fmt: skip
        moves[action % len(moves)](action // len(moves))

    def append(self, seed: int) -> None:
        """A few records, some of them batches, to one or two queues each; confirmed before the step ends."""
        chance = random.Random(seed)
        sent, ends = [], {queue: self.bench.store.reading.next_offset(queue) for queue in self.queues}
        for _ in range(chance.randint(1, 12)):
            queues = chance.sample(self.queues, chance.randint(1, 2))
            count = chance.choice([1, 1, 1, 5])
            body = b"%d" % self.made + b" " * chance.choice([0, 0, 300])
            made = message(queues, body, flags=(1 << FLAG_FORMAT_SHIFT) if count > 1 else 0, count=count)
            self.made += 1
            sent.append(made)
            for queue in queues:
                self.lists[queue].append((ends[queue], count, body))
                ends[queue] += count
        self.bench.store.append(*sent)
        self.bench.settle()

    def run(self, _seed: int) -> None:
        """The tail becomes a run; merges follow."""
        drain(self.bench.store)
        self.bench.store._parts.index_flusher.flush()
        drain(self.bench.store)

    def expire(self, _seed: int) -> None:
        """The oldest segments are removed in the order in which retention does it."""
        store = self.bench.store
        if len(store._log.segments) < 3:
            return
        if store._parts.opened.index.manifest.end_position < store._log.segments[1].base:
            self.run(0)
        store._log.drop_before(store._log.segments[1].base)
        self._claims = []
        if self.plan_next() % 2:  # a reader may read between the two, and know more than the writer reports
            self.look_around()
        store._parts.opened.index.move_begin(store._log.begin)
        claims, self._claims = self._claims, None
        for queue, first_offset in claims:
            self.check_expired(queue, first_offset)
        store._parts.index_flusher.drop_runs(store._parts.opened.index.expired_runs())
        drain(store)

    def grow(self, seed: int) -> None:
        """Rows for more queues than the tail has."""
        self.bench.store._parts.opened.index.grow(self.bench.store._parts.opened.index.queue_count + 1 + seed % 5000)

    def restart(self, _seed: int) -> None:
        """The writer ends and another one recovers."""
        self.bench.reopen()

    def plan_next(self) -> int:
        """The next number of the example; 0 when there are none left."""
        return next(self.plan, 0)

    def look_around(self) -> None:
        """One read of every queue, from some offset."""
        for queue in self.queues:
            self.read(queue, self.plan_next(), self.plan_next())

    def door(self) -> None:
        """Run the writer, if the example says so and it is not running already."""
        if not self._busy and (action := self.plan_next()) % 3 == 1:
            self._busy = True
            try:
                self.writer(action // 3)
            finally:
                self._busy = False

    def read(self, queue: int, where: int, size: int) -> None:
        """Read and compare with the list."""
        entries = self.lists[queue]
        end = entries[-1][0] + entries[-1][1] if entries else 0
        offset = where % (end + 1)
        try:
            found = self.attached.read_range(queue, offset, 1 + size % 40, 1 + size % 3000, 1 << 40)
        except Unsettled:
            return
        assert found.status in {OK, OFFSET_TOO_SMALL}, found.status
        assert (found.status == OFFSET_TOO_SMALL) == (found.first_offset > offset)
        if found.status == OFFSET_TOO_SMALL:
            self.check_expired(queue, found.first_offset)
        if offset == end:
            assert found.next_offset >= offset
        elif found.status == OK:
            assert found.next_offset > offset, "there was something to read"
        self.compare(queue, found)

    def check_expired(self, queue: int, first_offset: int) -> None:
        """What was reported as expired is; checked later while a segment is being dropped."""
        if self._claims is not None:
            self._claims.append((queue, first_offset))
        else:
            assert first_offset <= self.bench.store.reading.bounds(queue)[0]

    def compare(self, queue: int, found: Any) -> None:
        """Every record equals that of the list, and none is missing."""
        covered = [e for e in self.lists[queue] if e[0] < found.next_offset and e[0] + e[1] > found.first_offset]
        bases = range(found.first_offset, found.next_offset) if found.bases is None else found.bases.tolist()
        assert list(bases) == [base for base, _, _ in covered]
        blob = memoryview(found.blob)
        for start, (base, count, body) in zip(found.starts.tolist(), covered, strict=True):
            check_record(blob, start, None)
            view = RecordView(blob, start)
            assert (bytes(view.body), view.count) == (body, count)
            assert (queue, base) in list(view.dispatch())


@contextmanager
def doors(world: World) -> Iterator[None]:
    """Put the doors in place."""
    with pytest.MonkeyPatch.context() as patch:
        for kind, name in DOORS:
            inner = getattr(kind, name)

            def through(self: Any, *given: Any, inner: Any = inner) -> Any:
                world.door()
                found = inner(self, *given)
                world.door()
                return found

            patch.setattr(kind, name, through)
        yield


@pytest.mark.parametrize("twin", ["pure", "compiled"])
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.integers(0, 2**20), min_size=20, max_size=300))
def test_an_answer_is_true_whatever_happens_meanwhile(twin: str, plan: list[int]) -> None:
    if twin == "compiled" and native.choice.name != "compiled":
        pytest.skip(f"no compiled twin: {native.choice.reason}")
    folder = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "core", native.pure_core() if twin == "pure" else native.compiled_core())
        world = World(folder / "data")
        try:
            world.append(plan[0])
            world.plan = iter(plan)
            with doors(world):
                for action in plan[::5]:
                    world.writer(action)
                    world.look_around()
            for queue in world.queues:
                low, high = world.bench.store.reading.bounds(queue)
                assert world.attached.bounds(queue) == (low, high)
        finally:
            world.attached.close()
            world.bench.close()
            shutil.rmtree(folder)
