"""The whole store against a naive list: appends, atomic groups, state, close and reopen, power cuts."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from broker.store.errors import StoreFailed
from broker.store.index.reader import NO_SUCH_QUEUE, OFFSET_TOO_LARGE, OK
from broker.store.state import state_kinds
from broker.store.state.state_kinds import RECORDS_VERSION, StateChange
from remoting.protocol.errors import LocalMisuse
from runtime.files import DirectoryLocked
from runtime.format_file import WrongFormat
from tests.sim.disk import crash_copy
from tests.sim.log_judge import check_dense, read_log
from tests.sim.stores import StoreBench, bodies, drain, message

MIB = 1024 * 1024

QUEUES = 5


class StoreMachine(RuleBasedStateMachine):
    """The model is the list of groups in append order; a power cut keeps a prefix of it that has all confirmed ones."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="store-machine-"))
        self.generation = 0
        self.bench = StoreBench(self.root / "0")
        self.queues = self.bench.store.queues.open_all([b"q%d" % n for n in range(QUEUES)])
        self.bench.settle()
        self.groups: list[tuple[int, list[tuple[tuple[int, ...], bytes]], dict[bytes, bytes | None]]] = []
        self.number = self.appends = 0

    def teardown(self) -> None:
        self.bench.close()
        shutil.rmtree(self.root)

    def make(self, spreads, size: int):
        made = []
        for spread in spreads:
            self.number += 1
            queues = tuple(self.queues[n] for n in spread)
            made.append((queues, b"%08d" % self.number + bytes(size)))
        return made

    @rule(
        spreads=st.lists(st.lists(st.integers(0, QUEUES - 1), unique=True, max_size=3), min_size=1, max_size=30),
        size=st.sampled_from([0, 7, 300, 3000]),
    )
    def append(self, spreads, size: int) -> None:
        self.appends += 1
        made = self.make(spreads, size)
        before = {q: self.bench.store.reading.next_offset(q) for q in self.queues}
        appended = self.bench.store.append(*[message(queues, body) for queues, body in made])
        for (queues, body), offset in zip(made, appended.offsets, strict=True):
            if queues:
                assert offset == before[queues[0]]
            for queue in queues:
                before[queue] += 1
            self.groups.append((appended.end_position, [(queues, body)], {}))

    @rule(
        spreads=st.lists(st.lists(st.integers(0, QUEUES - 1), unique=True, min_size=1, max_size=3), max_size=8),
        keys=st.dictionaries(
            st.sampled_from([b"a", b"b", b"c"]), st.one_of(st.none(), st.binary(max_size=9)), min_size=1
        ),
    )
    def append_group(self, spreads, keys) -> None:
        self.appends += 1
        made = self.make(spreads, 20)
        changes = [StateChange(state_kinds.LEDGER, key, value) for key, value in keys.items()]
        end = self.bench.store.append(*[message(q, b) for q, b in made], changes=changes).end_position
        self.groups.append((end, made, keys))

    @rule()
    def settle(self) -> None:
        self.bench.settle()

    @rule()
    def turn(self) -> None:
        self.bench.turn()

    @rule()
    def maintain(self) -> None:
        self.bench.store.maintain(self.bench.clock.now_ms())

    @rule()
    def snapshot(self) -> None:
        self.bench.store._parts.snapshots.take()

    @rule()
    def reopen(self) -> None:
        epoch = self.bench.store.epoch
        self.bench.reopen()
        assert self.bench.store.epoch == epoch + 1
        assert self.bench.store.replayed_records == 0

    # Not `self.groups`: a power cut decides what is left of them, and the steps must not depend on that.
    @precondition(lambda self: self.appends)
    @rule(seed=st.integers(0, 1 << 30))
    def power_cut(self, seed: int) -> None:
        confirmed = self.bench.store.confirm_position
        self.generation += 1
        target = self.root / str(self.generation)
        crash_copy(self.bench.store, target, seed)
        self.bench.close()
        self.bench.directory = target
        self.bench.open()
        survivors = [seen.body for seen in read_log(target) if seen.kind == 1]
        kept = sum(len(messages) for _, messages, _ in self.groups)
        while self.groups and kept > len(survivors):
            kept -= len(self.groups[-1][1])
            end, _, _ = self.groups.pop()
            assert end > confirmed, "a confirmed group is missing"
        assert [body for _, messages, _ in self.groups for _, body in messages] == survivors
        self.drop_lost_states(confirmed)
        end = self.bench.store.end_position  # it may lie within what was one append of single messages
        self.groups = [(min(group[0], end), *group[1:]) for group in self.groups]

    def drop_lost_states(self, confirmed: int) -> None:
        """A group of changes only leaves no message: the tables show whether it survived."""
        while self.groups and not self.groups[-1][1] and self.groups[-1][0] > self.bench.store.end_position:
            end, _, _ = self.groups.pop()
            assert end > confirmed, "a confirmed group is missing"

    @invariant()
    def agrees(self) -> None:
        store = self.bench.store
        table: dict[bytes, bytes] = {}
        expected: dict[int, list[bytes]] = {queue: [] for queue in self.queues}
        visible: dict[int, int] = dict.fromkeys(self.queues, 0)
        for end, messages, changes in self.groups:
            for queues, body in messages:
                for queue in queues:
                    expected[queue].append(body)
                    visible[queue] += end <= store.confirm_position
            table.update(changes)
        assert {k: v for k, v in table.items() if v is not None} == {
            key: value for key, (value, _) in store.state.items(state_kinds.LEDGER)
        }
        for queue in self.queues:
            assert store.reading.next_offset(queue) == len(expected[queue])
            assert store.reading.bounds(queue) == (0, visible[queue])
            assert bodies(store, queue) == expected[queue][: visible[queue]]


def test_store_machine() -> None:
    """Any order of appends, reads, restarts and deletions, against a model."""
    run_state_machine_as_test(
        StoreMachine,
        settings=settings(
            max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


@pytest.fixture
def bench(tmp_path: Path):
    made = StoreBench(tmp_path / "data")
    yield made
    made.close()


def test_read_statuses(bench: StoreBench) -> None:
    """Each outcome of a read has its own status."""
    store = bench.store
    queue = store.queues.open(b"q")
    store.append(*[message([queue], b"%d" % n) for n in range(10)])
    assert store.reading.read(queue, 0, 5, 1000).records == []
    bench.settle()
    result = store.reading.read(queue, 3, 100, 1 << 20, end_offset=6)
    assert (result.status, result.first_offset, result.next_offset, len(result.records)) == (OK, 3, 6, 3)
    assert store.reading.read(queue, 10, 5, 1000).status == OK
    assert store.reading.read(queue, 11, 5, 1000).status == OFFSET_TOO_LARGE
    assert store.reading.read(99, 0, 5, 1000).status == NO_SUCH_QUEUE
    assert len(store.reading.read(queue, 0, 100, 1).records) == 1


def test_callbacks_and_listeners(bench: StoreBench) -> None:
    """Callbacks come in order after the flush; listeners are called once per move for each moved queue."""
    store, heard, moved = bench.store, [], []
    queues = store.queues.open_all([b"a", b"b"])
    bench.settle()
    store.positions.on_advance(lambda ids: moved.append(list(ids)))
    first = store.append(message(queues, b"1"), message(queues[:1], b"2")).end_position
    second = store.append(message(queues[1:], b"3")).end_position
    store.when_confirmed(second, lambda error: heard.append(("second", error)))
    store.when_confirmed(first, lambda error: heard.append(("first", error)))
    assert heard == []
    bench.settle()
    assert heard == [("first", None), ("second", None)]
    assert {queue for ids in moved for queue in ids} == set(queues)
    assert all(len(ids) == len(set(ids)) for ids in moved)
    store.when_confirmed(0, lambda error: heard.append(("now", error)))
    assert heard[-1] == ("now", None)


def test_queue_ids_are_never_reused(bench: StoreBench) -> None:
    """A deleted queue's id stays unused, also after the log has been replayed from its begin."""
    first = bench.store.queues.open(b"gone")
    bench.store.queues.delete([first])
    assert bench.store.queues.find(b"gone") is None
    bench.reopen()
    (bench.directory / "state" / "SNAPSHOT").unlink()
    bench.reopen()
    again = bench.store.queues.open(b"gone")
    assert again == first + 1
    assert bench.store.queues.name(again) == b"gone"
    with pytest.raises(LocalMisuse):
        bench.store.reading.bounds(first)


def test_search_time(bench: StoreBench) -> None:
    """The first offset at or after a store time, or after it."""
    store = bench.store
    queue = store.queues.open(b"q")
    start = bench.clock.now_ms()
    for _ in range(10):
        store.append(message([queue], b"x"), message([queue], b"y"))
        bench.clock.advance_ms(10)
    bench.settle()
    assert store.reading.search_time(queue, start) == 0
    assert store.reading.search_time(queue, start, upper=True) == 2
    assert store.reading.search_time(queue, start + 11) == 4
    assert store.reading.search_time(queue, start + 10_000) == 20


def test_asynchronous_flush_confirms_at_the_end_of_the_turn(tmp_path: Path) -> None:
    """With flush = "async" a write is confirmed by the next turn, and close still flushes it."""
    bench = StoreBench(tmp_path / "data", flush="async", flush_interval_ms=60_000)
    queue = bench.store.queues.open(b"q")
    bench.store.append(message([queue], b"x"))
    bench.turn()
    assert bodies(bench.store, queue) == [b"x"]
    assert bench.store.positions.flushed == 0
    bench.reopen()
    assert bodies(bench.store, queue) == [b"x"]
    bench.close()


def test_a_closed_store_refuses(tmp_path: Path) -> None:
    """After close nothing is appended and waiting callbacks get an error."""
    bench = StoreBench(tmp_path / "data")
    queue = bench.store.queues.open(b"q")
    bench.close()
    bench.store.close()
    with pytest.raises(StoreFailed, match="closed"):
        bench.store.append(message([queue], b"x"))


def test_one_process_per_directory(bench: StoreBench) -> None:
    """A second store on the directory is refused by name."""
    with pytest.raises(DirectoryLocked, match="in use"):
        StoreBench(bench.directory)


def test_other_format_is_refused(tmp_path: Path) -> None:
    """A directory of another version is not touched."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "FORMAT").write_text("lightmq-store 99\n")
    with pytest.raises(WrongFormat, match="lightmq-store 99"):
        StoreBench(tmp_path / "data")


def test_a_log_with_newer_records_is_refused(tmp_path: Path) -> None:
    """What this release would overlook may be what takes a message back."""
    bench = StoreBench(tmp_path / "data")
    bench.close()
    assert (tmp_path / "data" / "FORMAT").read_text() == f"lightmq-store 2 records {RECORDS_VERSION}\n"
    (tmp_path / "data" / "FORMAT").write_text(f"lightmq-store 2 records {RECORDS_VERSION + 1}\n")
    with pytest.raises(WrongFormat, match="a newer release has opened this directory"):
        StoreBench(tmp_path / "data")


def test_judge_agrees_with_the_index(bench: StoreBench) -> None:
    """An independent scan of the files finds the same dense queues."""
    queues = bench.store.queues.open_all([b"a", b"b", b"c"])
    for n in range(60):
        bench.store.append(message(queues[: 1 + n % 3], b"%d" % n))
    bench.settle()
    ends = check_dense(read_log(bench.directory))
    assert ends == {queue: bench.store.reading.bounds(queue)[1] for queue in queues}


def test_positions_are_those_of_the_records(tmp_path: Path) -> None:
    """Over ends of log files, from tail and runs; no more than there are."""
    bench = StoreBench(tmp_path / "data")
    queue, other = bench.store.queues.open_all([b"q", b"other"])
    for number in range(300):
        bench.store.append(message([queue], b"%d" % number + bytes(200)), message([other], b""))
        if number == 150:
            bench.settle()
            bench.store.maintain(0)
            drain(bench.store)
            bench.turn()
    bench.settle()
    meant = [
        seen.position
        for seen in read_log(bench.directory)
        if (queue, 0) <= min(seen.dispatch, default=(-1, 0)) < (queue + 1, 0)
    ]
    assert bench.store.reading.positions(queue, 0, 300) == meant
    assert bench.store.reading.positions(queue, 290, 99) == meant[290:]
    bench.close()


def disk_bytes(folder: Path) -> int:
    """The allocated size of a folder's files, as counted by `du`."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_small_log_takes_little_of_the_disk(tmp_path: Path, flush: str) -> None:
    """At most 40 MB for 300 messages with the default sizes, also when reopened; files grow as the log does."""
    bench = StoreBench(
        tmp_path / "data", segment_size_bytes=256 * MIB, ballast_size_bytes=16 * MIB, index_tail_entries=262_144,
        flush=flush,
    )  # fmt: skip
    for _ in range(2):
        queue = bench.store.queues.open(b"q")
        for _ in range(150):
            bench.store.append(message([queue], bytes(1000)))
        bench.settle()
        assert disk_bytes(tmp_path / "data") < 40e6
        bench.close()
        bench.open()
        bench.store.maintain(0)
    queue = bench.store.queues.open(b"q")
    for _ in range(60):
        bench.store.append(message([queue], bytes(1 << 20)))
        bench.settle()
    bench.store.maintain(0)
    assert (tmp_path / "data" / "BALLAST").stat().st_size == 16 * MIB
    bench.close()
    bench.open()
    assert bench.store.end_position > 60 << 20
    bench.close()
