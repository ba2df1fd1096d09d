"""The whole store against a list: for any requests in any order, through crashes and lost files, both agree.

Each twin of the hot loops runs its own machine. LIGHTMQ_MODEL_EXAMPLES=2000 makes the runs long,
LIGHTMQ_MODEL_SHRINK=1 makes what fails short.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from broker.store.index.absence import Absence
from broker.store.index.reader import NO_SUCH_QUEUE, OFFSET_TOO_LARGE, OFFSET_TOO_SMALL, OK
from broker.store.log_store import LogStore
from broker.store.state.state_kinds import StateChange
from broker.store.state.state_tables import GroupRule
from remoting.native import core as native
from tests.sim.disk import crash_copy
from tests.sim.store_model import (
    QUEUE,
    RETAINED,
    Entry,
    Model,
    Sent,
    created,
    end_of,
    first_since,
    oldest,
    taken,
)
from tests.sim.stores import Silent, StoreBench, drain, mixed

EXAMPLES = int(os.environ.get("LIGHTMQ_MODEL_EXAMPLES", "80"))
SHRINK = (Phase.shrink,) if os.environ.get("LIGHTMQ_MODEL_SHRINK") else ()
"""Off by default: threads make the moment of a flush differ, and a long search for a smaller example finds little."""
STEPS = 60
MEMORY = Path("/dev/shm")
NAMES = [b"q%d" % n for n in range(8)]
KEYS = [b"k%d" % n for n in range(5)]
KINDS = (3, 4)
GROUP = b"topic"

numbers = st.integers(0, 2**16)
state_changes = st.tuples(st.sampled_from(KINDS), st.sampled_from(KEYS), st.none() | st.binary(max_size=40))


class StoreMachine(RuleBasedStateMachine):
    """One store, its model, and what can be requested of both."""

    twin = "pure"

    def __init__(self) -> None:
        super().__init__()
        self.kept_core = native.core
        native.core = native.pure_core() if self.twin == "pure" else native.compiled_core()
        self.place = Path(tempfile.mkdtemp(prefix="store-model-", dir=MEMORY if MEMORY.is_dir() else None))
        self.model = Model()
        self.lives = 0
        self.confirmed = 0
        self.begin = 0
        self.number = 0
        self.opened_at = 0
        self.hidden = 0
        self.rule: tuple[int, int] | None = None

    @initialize(
        segment=st.sampled_from([4096, 8192, 16384]),
        tail=st.sampled_from([16, 24, 64]),
        flush=st.sampled_from(["sync", "sync", "async"]),
        retention_ms=st.sampled_from([0, 1000]),
        size=st.sampled_from([0, 49_152]),
        merge=st.sampled_from([(2, 40), (2, 1 << 24), (3, 1 << 24)]),
        snapshot=st.sampled_from([3000, 1 << 30]),
        rule=st.sampled_from([None, (500, 0), (5000, 0), (0, 3000), (700, 9000)]),
    )
    def open(
        self,
        segment: int,
        tail: int,
        flush: str,
        retention_ms: int,
        size: int,
        merge: tuple[int, int],
        snapshot: int,
        rule: tuple[int, int] | None,
    ) -> None:
        """Start with an empty directory."""
        self.bench = StoreBench(
            self.place / "0", segment_size_bytes=segment, index_tail_entries=tail, flush=flush, flush_interval_ms=1,
            retention_ms=retention_ms, retention_size_bytes=size, index_merge_runs=merge[0],
            index_merge_entries_max=merge[1], snapshot_log_bytes=snapshot, carry_entries_max=2, log=Silent(),
        )  # fmt: skip
        self.rule = rule
        self.open_queues(NAMES[:2])

    @property
    def store(self) -> LogStore:
        """The store as it is open now."""
        return self.bench.store

    def teardown(self) -> None:
        """Close and remove everything."""
        if hasattr(self, "bench"):
            self.bench.close()
        shutil.rmtree(self.place)
        native.core = self.kept_core

    # -- writing

    def pick(self, number: int) -> int:
        """One of the existing queues."""
        queues = sorted(self.model.queues)
        return queues[number % len(queues)]

    def told(self, first: int, sent: list[Sent], changes: list[Any], *, atomic: bool = False) -> None:
        """Record what was just appended in the model."""
        self.model.append(self.bench.directory, (first, self.store.end_position), sent, changes, atomic=atomic)

    @rule(wanted=st.lists(st.sampled_from(NAMES), min_size=1, max_size=4))
    def open_queues(self, wanted: list[bytes]) -> None:
        """New names get the next ids, known ones keep theirs."""
        first = self.store.end_position
        missing = [name for name in dict.fromkeys(wanted) if name not in self.model.names]
        made = created(missing, self.model.next_id)
        ids = self.store.queues.open_all(wanted)
        if missing:
            self.told(first, [], made)
        assert ids == [self.model.names[name] for name in wanted]
        self.group()

    def group(self) -> None:
        """The first name is a topic with its own retention; the second follows it."""
        groups, names = self.store.groups, self.model.names
        if self.rule is None or NAMES[0] not in names:
            groups.forget(GROUP)
            return
        groups.define(GROUP, GroupRule((names[NAMES[0]],), *self.rule))
        groups.join(GROUP, [names[name] for name in NAMES[:2] if name in names])

    @rule(
        seed=numbers,
        count=st.sampled_from([1, 3, 20, 90]),
        size=st.sampled_from([0, 60, 700]),
        atomic=st.booleans(),
        changes=st.lists(state_changes, max_size=2),
    )
    def append(self, seed: int, count: int, size: int, atomic: bool, changes: list[Any]) -> None:
        """Messages, some to several queues, some retained, some with changes in the same group."""
        if not self.model.queues:
            return
        sent, messages = mixed(random.Random(seed), sorted(self.model.queues), count, size, self.number)
        self.number += count
        first = self.store.end_position
        self.store.append(*messages, atomic=atomic, changes=[StateChange(*change) for change in changes])
        self.told(first, sent, changes, atomic=atomic)

    @rule(changes=st.lists(state_changes, min_size=1, max_size=6))
    def change_state(self, changes: list[Any]) -> None:
        """Several changes are one group."""
        first = self.store.end_position
        self.store.append_state([StateChange(*change) for change in changes])
        self.told(first, [], changes)

    @rule(number=numbers)
    def delete_queue(self, number: int) -> None:
        """A deleted queue disappears at once; its id is never used again."""
        if len(self.model.queues) < 2:
            return
        queue = self.pick(number)
        name = self.store.queues.name(queue)
        first = self.store.end_position
        self.store.queues.delete([queue])
        self.told(first, [], [(QUEUE, name, None)])
        assert self.store.reading.read(queue, 0, 10, 1000).status == NO_SUCH_QUEUE
        self.group()

    # -- what happens by itself

    @rule()
    def confirm(self) -> None:
        """Everything written so far becomes durable and visible."""
        self.bench.settle()

    @rule()
    def turn(self) -> None:
        """The loop runs what the threads have scheduled, if anything."""
        self.bench.turn()

    @rule(passed_ms=st.sampled_from([0, 300, 1100]), times=st.sampled_from([1, 1, 3, 25]))
    def maintain(self, passed_ms: int, times: int) -> None:
        """Time passes and the upkeep runs, so often that a log file may really expire."""
        self.bench.clock.advance_ms(passed_ms)
        self.store.maintain(self.bench.clock.now_ms())
        for _ in range(times - 1):
            drain(self.store)
            self.bench.settle()
            self.store.maintain(self.bench.clock.now_ms())

    @rule()
    def flush_index(self) -> None:
        """The tail becomes a run, and runs are merged."""
        if not self.store._parts.index_flusher.busy:
            self.store._parts.index_flusher.flush()

    @rule()
    def snapshot(self) -> None:
        """A snapshot of the state is written."""
        self.store._parts.snapshots.take()

    @rule(index=st.booleans(), snapshot=st.booleans())
    def restart(self, index: bool, snapshot: bool) -> None:
        """Close and open; everything written is there, also without the files the log can replace."""
        if not self.ripe:
            return
        end = self.store.end_position
        self.bench.close()
        assert self.store.confirm_position == end
        self.begin_again(self.bench.directory, index, snapshot)
        assert self.store.end_position == end
        self.check_all()

    @rule(seed=numbers, index=st.booleans(), snapshot=st.booleans())
    def crash(self, seed: int, index: bool, snapshot: bool) -> None:
        """A power cut loses what was not flushed in whole or in part; what was confirmed stays."""
        if not self.ripe:
            return
        self.lives += 1
        directory = self.place / str(self.lives)
        durable = crash_copy(self.store, directory, seed)
        if self.bench.settings.flush == "sync":
            assert durable >= self.store.confirm_position
        self.bench.close()
        shutil.rmtree(self.bench.directory)
        self.begin_again(directory, index, snapshot)
        assert self.store.end_position >= durable
        self.model.forget_behind(self.store.end_position)
        self.check_all()

    @property
    def ripe(self) -> bool:
        """Whether enough was written since the last start to make another one worthwhile."""
        return self.store.end_position - self.opened_at > 3000

    def begin_again(self, directory: Path, index: bool, snapshot: bool) -> None:
        """Open `directory`, perhaps without the files that only shorten the start."""
        if index:
            shutil.rmtree(directory / "index")
        if snapshot:
            shutil.rmtree(directory / "state", ignore_errors=True)
        self.bench.directory = directory
        self.bench.open()
        self.confirmed = 0
        self.opened_at = self.store.end_position
        assert self.store.confirm_position == self.store.end_position

    # -- reading

    def visible(self, queue: int) -> tuple[list[Entry], int, int]:
        """(visible entries of a queue, oldest offset, confirmed end), by the model."""
        entries = self.model.confirmed(queue, self.store.confirm_position)
        high = end_of(entries)
        everything = self.model.queues[queue]
        begin = max(self.begin, self.store.groups.begin_of(queue))
        low = oldest(everything, begin, end_of(everything))
        return [entry for entry in entries if entry.position >= begin], low, high

    @rule(number=numbers, offset=numbers, count=st.integers(1, 60), size=st.integers(0, 6000), end=st.none() | numbers)
    def read(self, number: int, offset: int, count: int, size: int, end: int | None) -> None:
        """A read from any offset with any limits gives what the list gives, by record and in one piece."""
        if not self.model.queues:
            return
        queue = self.pick(number)
        entries, low, high = self.visible(queue)
        offset %= high + 3
        end = None if end is None else end % (high + 3)
        found = self.store.reading.read(queue, offset, count, size, end)
        piece = self.store.reading.read_range(queue, offset, count, size, high if end is None else end)
        first = max(offset, low)
        expected = taken(entries, first, high if end is None else min(high, end), first + count, size)
        status = OFFSET_TOO_SMALL if offset < low else OK
        if offset > high:
            expected, first, status = [], offset, OFFSET_TOO_LARGE
        parts = expected
        if any(entry.count > 1 for entry in expected):  # a range behind a batch may end before its bytes are used up
            parts = expected[: len(piece.starts)] or expected[:1]
        for each, wanted in ((found, expected), (piece, parts)):
            after = wanted[-1].end if wanted else min(first, high)
            assert (each.status, each.first_offset, each.next_offset) == (status, first, after)
            assert (each.min_offset, each.max_offset) == (low, high)
            given = range(first, after) if each.bases is None else each.bases
            assert list(given) == [entry.offset for entry in wanted]
        assert [bytes(record) for record in found.records] == [entry.data for entry in expected]
        assert bytes(piece.blob) == b"".join(entry.data for entry in parts)
        assert len(piece.starts) == len(parts)

    @rule(number=numbers, at=numbers, behind_ms=st.integers(-5, 2000), upper=st.booleans())
    def look_up(self, number: int, at: int, behind_ms: int, upper: bool) -> None:
        """A record by its position, an offset by its time."""
        if not self.model.queues:
            return
        queue = self.pick(number)
        entries, _, high = self.visible(queue)
        when = self.bench.clock.now_ms() - behind_ms
        assert self.store.reading.search_time(queue, when, upper) == first_since(entries, when, high, upper=upper)
        everything = self.model.queues[queue]
        if everything:
            entry = everything[at % len(everything)]
            found = self.store.reading.read_at(entry.position)
            seen = self.begin <= entry.position < self.store.confirm_position
            assert (None if isinstance(found, Absence) else bytes(found)) == (entry.data if seen else None)

    # -- what holds at any time

    @invariant()
    def bounds_and_state(self) -> None:
        """Confirm and begin only rise; bounds, queues and tables are the model's."""
        if not hasattr(self, "bench"):
            return
        store, model = self.store, self.model
        self.check_begin()
        self.check_group()
        assert store.confirm_position >= self.confirmed
        self.confirmed = store.confirm_position
        for name in NAMES:
            assert store.queues.find(name) == model.names.get(name)
        for queue, entries in model.queues.items():
            _, low, high = self.visible(queue)
            assert store.reading.bounds(queue) == (low, high), (queue, store.reading.bounds(queue), low, high)
            assert store.reading.next_offset(queue) == end_of(entries)
        tables = {kind: {key: value for key, (value, _) in store.state.items(kind)} for kind in KINDS}
        assert tables == {kind: model.tables.get(kind, {}) for kind in KINDS}
        assert {key for key, _ in store.state.items(RETAINED)} == set(model.retained)

    def check_begin(self) -> None:
        """Only records that are old, or too many, have expired."""
        begin, kept = self.store.begin_position, self.bench.settings
        assert begin >= self.begin
        if begin > self.begin:
            gone = [e for entries in self.model.queues.values() for e in entries if self.begin <= e.position < begin]
            limit = self.bench.clock.now_ms() - kept.retention_ms
            too_old = kept.retention_ms and all(entry.store_ms < limit for entry in gone)
            # With the file that went, the rest of the one being written, and the next one, which is prepared.
            size = self.store.end_position - begin + 3 * kept.largest_file_bytes
            assert too_old or 0 < kept.retention_size_bytes < size, (self.begin, begin)
            self.begin = begin

    def check_group(self) -> None:
        """A deleted group stays hidden, and nothing that its rule keeps is."""
        begin, queue = self.store.groups.begin(GROUP), self.model.names.get(NAMES[0])
        if self.bench.settings.flush == "sync":
            assert begin >= self.hidden or begin == 0 < self.hidden <= self.begin
        if begin > self.hidden and queue is not None and self.rule is not None:
            age_ms, size = self.rule
            entries = self.model.confirmed(queue, self.store.confirm_position)
            gone = [entry for entry in entries if self.hidden <= entry.position < begin]
            left = sum(len(entry.data) for entry in entries if entry.position >= begin)
            too_old = age_ms and all(entry.store_ms < self.bench.clock.now_ms() - age_ms for entry in gone)
            assert not gone or too_old or 0 < size < left + len(gone[-1].data), (begin, gone[-1].offset)
        self.hidden = begin

    def check_all(self) -> None:
        """Every queue from its oldest offset on, and every retained message, byte by byte."""
        self.group()
        self.check_begin()
        for queue in self.model.queues:
            entries, low, high = self.visible(queue)
            found = self.store.reading.read(queue, low, 1 << 30, 1 << 40)
            assert [bytes(record) for record in found.records] == [entry.data for entry in entries]
            assert found.next_offset == high
        for topic, body in self.model.retained.items():
            entry = self.store.state.get(RETAINED, topic)
            assert entry is not None
            record = self.store.reading.read_at(entry[1])
            assert isinstance(record, memoryview)
            start = int.from_bytes(record[44:48], "little")
            assert bytes(record[start : start + len(body)]) == body


def run(twin: str) -> Any:
    """The test case of one twin."""
    machine = type(f"{twin.capitalize()}Machine", (StoreMachine,), {"twin": twin})
    case = machine.TestCase
    case.settings = settings(
        max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None, print_blob=True,
        suppress_health_check=list(HealthCheck), phases=(Phase.reuse, Phase.generate, *SHRINK),
    )  # fmt: skip
    return case


TestPureStore = run("pure")
TestCompiledStore = pytest.mark.skipif(
    native.choice.name != "compiled", reason=f"no compiled twin: {native.choice.reason}"
)(run("compiled"))
