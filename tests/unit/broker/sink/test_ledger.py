"""Exactly once: a commit shows the listed rows once, at whatever point it was interrupted."""

from __future__ import annotations

import msgspec
import pytest

from broker.publishing.placement import Placement, QueueChoice
from broker.sink.ledger import KEPT_EXPIRY_FACTOR, NO_BATCH, PREPARED_MAX, AttemptKey, SinkLedger, Stages
from broker.store.placed import Placed
from broker.store.state import state_kinds
from broker.store.state.state_kinds import StateChange
from broker.subscriptions.filters import Dispatcher, Filters
from broker.topics.topics import Topics
from remoting.protocol.bodies.sink_body import BatchDigest
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.records import names
from remoting.protocol.records.image import hide
from remoting.protocol.records.record import RecordView
from tests.support.plants import FAILURES, Plant, catches

STEP = "broker.sink.ledger:SinkLedger.step"


class Sink:
    """One broker's staging, placement and ledger over a store that can be reopened."""

    def __init__(self, bench, *, group_bytes_max: int = 1_000_000) -> None:
        self.bench = bench
        store = bench.store
        topics = Topics(store, topics_max=10)
        filters = Filters(store, expiry_ms=0, filters_max=10, per_user_max=10, now_ms=0)
        dispatcher = Dispatcher(store, topics, filters, cached_topics_max=10, queue_count=1)
        limits = {"message_size_bytes_max": 1_000, "properties_bytes_max": 1_000}
        placement = Placement(QueueChoice(topics, dispatcher, queue_count=1, auto_create=True, **limits))
        self.stages = Stages(store, set(), expiry_ms=1_000, attempts_max=100, now_ms=0)
        self.ledger = SinkLedger(
            store, self.stages, placement, group_bytes_max=group_bytes_max, sinks_max=100, refused=print
        )

    def stage(self, entries, batch: int, partition: int = 0, attempt: int = 0) -> tuple[int, int, int]:
        found = self.stages.open(AttemptKey("s", batch, partition, attempt), 0)
        images = b"".join([hide(one) for one in entries])
        self.bench.store.append(Placed(images, [(found.queue_id,)] * len(entries)))
        self.bench.settle()
        return partition, attempt, len(entries)

    def commit(self, batch: int, handles, digest: BatchDigest | None = None) -> bool:
        run = self.ledger.begin("s", batch, handles, digest=digest)
        while run is not None and not run.finished:
            self.ledger.step(run)
        self.bench.settle()
        return run is not None

    def bodies(self) -> list[bytes]:
        queue_id = self.bench.store.queues.find(names.light_queue_name(b"out/x"))
        if queue_id is None:
            return []
        return [bytes(RecordView(r).body) for r in self.bench.store.reading.read(queue_id, 0, 999, 999_999).records]


@pytest.fixture
def rows(make_entries):
    return lambda *bodies: [entry for body in bodies for entry in make_entries(b"out/x", body=body)]


def test_nothing_is_visible_before_the_commit_and_all_once_after_it(bench, rows) -> None:
    sink = Sink(bench)
    handle = sink.stage(rows(b"1", b"2"), 0)
    assert sink.bodies() == []
    assert sink.ledger.last_batch("s")[0] == NO_BATCH
    assert sink.commit(0, [handle])
    assert sink.bodies() == [b"1", b"2"]
    assert not sink.commit(0, [handle])
    assert sink.bodies() == [b"1", b"2"]
    assert sink.ledger.last_batch("s")[0] == 0
    assert len(sink.stages) == 0


def test_only_the_listed_attempts_count(bench, rows) -> None:
    sink = Sink(bench)
    sink.stage(rows(b"lost"), 0, partition=0, attempt=1)
    kept = sink.stage(rows(b"kept"), 0, partition=0, attempt=2)
    other = sink.stage(rows(b"other"), 0, partition=1, attempt=3)
    sink.commit(0, [kept, other])
    assert sink.bodies() == [b"kept", b"other"]
    assert len(sink.stages) == 0


def test_an_older_batch_is_already_committed(bench, rows) -> None:
    sink = Sink(bench)
    sink.commit(5, [sink.stage(rows(b"five"), 5)])
    assert not sink.commit(4, [(0, 0, 1)])
    assert sink.bodies() == [b"five"]


@pytest.mark.parametrize("group_bytes_max", [1, 1_000_000])
def test_what_a_batch_was_is_kept_with_its_number(bench, rows, group_bytes_max) -> None:
    """Also while its commit is half done, and after a restart; the digest of a repeated commit changes nothing."""
    sink = Sink(bench, group_bytes_max=group_bytes_max)
    mine, late = BatchDigest(3, 1, 2, 1, "query"), BatchDigest(9, 9, 9, 1)
    handle = sink.stage(rows(b"1", b"2", b"3"), 4)
    sink.ledger.step(sink.ledger.begin("s", 4, [handle], digest=mine))
    bench.reopen()
    sink = Sink(bench, group_bytes_max=group_bytes_max)
    for run in sink.ledger.unfinished():
        assert run.digest == mine
        while not run.finished:
            sink.ledger.step(run)
    assert not sink.commit(4, [handle], late)
    bench.settle()
    assert (sink.ledger.last_batch("s")[0], sink.ledger.digest("s")) == (4, mine)
    assert sink.commit(5, [sink.stage(rows(b"4"), 5)])
    assert sink.ledger.digest("s") is None


def test_a_ledger_of_an_earlier_release_says_nothing_of_the_rows(bench) -> None:
    """One without a plan, and one with a commit that was half done."""
    for value in ([3], [3, None], [3, [4, [[0, 0, 5]], 2, []], [], []]):
        raw = msgspec.msgpack.encode(value)
        bench.store.append_state([StateChange(state_kinds.LEDGER, b"s", raw)])
        ledger = Sink(bench).ledger
        assert (ledger.last_batch("s")[0], ledger.digest("s")) == (3, None)
        assert [run.digest for run in ledger.unfinished()] == [None] * (len(value) > 2)


def test_an_empty_batch_is_committed_too(bench) -> None:
    sink = Sink(bench)
    assert sink.commit(0, [])
    assert sink.commit(1, [(0, 0, 0)])
    assert sink.ledger.last_batch("s")[0] == 1


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_large_commit_continues_after_a_restart_with_the_attempts_it_began_with(bench, rows, steps) -> None:
    bodies = [b"%03d" % number for number in range(20)]
    sink = Sink(bench, group_bytes_max=1_000)
    handles = [sink.stage(rows(*bodies[:7]), 0, 0), sink.stage(rows(*bodies[7:]), 0, 1)]
    run = sink.ledger.begin("s", 0, handles)
    for _ in range(steps):
        sink.ledger.step(run)
    assert not run.finished
    bench.reopen()
    again = Sink(bench, group_bytes_max=1_000)
    assert len(again.bodies()) == run.done
    late = again.stage(rows(b"replayed"), 0, 0, attempt=99)
    (unfinished,) = again.ledger.unfinished()
    assert unfinished.done == run.done
    assert again.commit(0, [late])
    assert again.bodies() == bodies
    assert not again.commit(0, [late])
    assert again.ledger.unfinished() == []


def test_what_is_not_staged_or_not_complete_is_refused_and_changes_nothing(bench, rows) -> None:
    sink = Sink(bench)
    sink.stage(rows(b"1", b"2"), 0)
    for handle, reason in (
        ((0, 0, 3), "its handle has 3"),
        ((0, 0, 1), "its handle has 1"),
        ((7, 0, 1), "not staged"),
    ):
        with pytest.raises(Refused, match=reason):
            sink.commit(0, [handle])
    assert sink.bodies() == []
    assert sink.commit(0, [(0, 0, 2)])


def test_abort_and_expiry_drop_what_was_not_committed(bench, rows) -> None:
    sink = Sink(bench)
    handle = sink.stage(rows(b"1"), 0)
    assert sink.ledger.abort("s", 0) == 1
    with pytest.raises(Refused):
        sink.commit(0, [handle])
    sink.stage(rows(b"2"), 1)
    assert sink.ledger.expire(1_000) == 1
    assert sink.bodies() == []


@catches(
    Plant(
        "aborts-what-is-half-visible",
        "broker.sink.ledger:SinkLedger.abort",
        "if record.open is not None and record.open.batch == batch:",
        "if False:",
    ),
)
def test_a_commit_that_has_begun_is_not_aborted(bench, rows) -> None:
    """Some of its rows are visible: a driver that gives up late must not take the others away."""
    sink = Sink(bench, group_bytes_max=1_000)
    handle = sink.stage(rows(*[b"%03d" % number for number in range(20)]), 0)
    run = sink.ledger.begin("s", 0, [handle])
    sink.ledger.step(run)
    assert not run.finished
    bench.settle()
    assert sink.ledger.abort("s", 0) == 0
    assert len(sink.stages) == 1
    while not run.finished:
        sink.ledger.step(run)
    bench.settle()
    assert len(sink.bodies()) == 20


def test_what_is_prepared_survives_expiry_abort_and_restart(bench, rows) -> None:
    """Its batch may be decided elsewhere: only a commit ends it."""
    sink = Sink(bench)
    handle = sink.stage(rows(b"1", b"2"), 0, attempt=1)
    sink.stage(rows(b"lost"), 0, attempt=2)
    end = sink.ledger.prepare("s", 0, [handle])
    assert sink.ledger.prepare("s", 0, [handle]) <= end, "repeated, it changes nothing"
    bench.reopen()
    again = Sink(bench)
    assert again.ledger.abort("s", 0) == 1
    assert again.ledger.expire(1_000) == 0
    assert again.bodies() == []
    assert again.commit(0, [handle])
    assert again.bodies() == [b"1", b"2"]
    assert len(again.stages) == 0
    assert again.ledger.prepare("s", 0, [handle]) <= bench.store.end_position, "a committed batch needs no preparation"
    late = again.stage(rows(b"3"), 1)
    assert again.commit(1, [late]), "nothing of the batch before is in the way"


def test_prepared_attempts_end_eventually(bench, rows) -> None:
    """A nameless job that died between two steps must not keep its rows for ever."""
    sink = Sink(bench)
    sink.ledger.prepare("s", 0, [sink.stage(rows(b"1"), 0)])
    assert sink.ledger.expire(KEPT_EXPIRY_FACTOR * 1_000 - 1) == 0
    assert sink.ledger.expire(KEPT_EXPIRY_FACTOR * 1_000) == 1


def test_only_complete_attempts_are_prepared_and_not_without_limit(bench, rows) -> None:
    """What is refused then is refused before anything is decided."""
    sink = Sink(bench)
    partition, attempt, count = sink.stage(rows(b"1"), 0)
    with pytest.raises(Refused, match="its handle has 2"):
        sink.ledger.prepare("s", 0, [(partition, attempt, count + 1)])
    for number in range(PREPARED_MAX):
        sink.ledger.prepare("s", 0, [sink.stage(rows(b"1"), 0, attempt=100 + number)])
    with pytest.raises(Refused, match="without a commit"):
        sink.ledger.prepare("s", 0, [(partition, attempt, count)])


def test_only_what_is_prepared_is_committed(bench, rows) -> None:
    """Another group may have decided this batch: other rows for it would be duplicates."""
    sink = Sink(bench)
    first, second = sink.stage(rows(b"1"), 0, attempt=1), sink.stage(rows(b"2"), 0, attempt=2)
    other = sink.stage(rows(b"3"), 0, attempt=3)
    for handle in (first, second):
        sink.ledger.prepare("s", 0, [handle])
    with pytest.raises(Refused, match="prepared here for a commit at another broker group"):
        sink.commit(0, [other])
    assert sink.commit(0, [second])
    assert sink.bodies() == [b"2"]


@catches(
    Plant("forgotten-at-the-end", STEP, "[one for one in last.prepared if one[0] > run.batch]", "[]"),
    Plant(
        "forgotten-on-the-way",
        STEP,
        "msgspec.structs.replace(last, open=OpenCommit(run.batch, run.handles, done, run.plan, run.digest))",
        "LedgerRecord(last.last_batch, OpenCommit(run.batch, run.handles, done, run.plan, run.digest), last.plan)",
    ),
    Plant(
        "not-kept-after-a-start",
        "broker.sink.ledger:SinkLedger.__init__",
        "self._keep(bytes(key).decode(), batch, handles)",
        "pass",
    ),
    Plant(
        "anything-may-be-committed",
        "broker.sink.ledger:SinkLedger.begin",
        "if prepared and list(handles) not in prepared:",
        "if False:",
    ),
    raises=(*FAILURES, Refused),
)
@pytest.mark.parametrize("steps", [1, 99], ids=["in the middle", "whole"])
def test_a_commit_leaves_what_is_prepared_for_later_batches(bench, rows, steps) -> None:
    """Two groups of brokers: batch 1 is prepared here, and the other group may have decided it, when batch 0 ends.

    Also if this broker stops in the middle of batch 0: what is prepared lasts until its own batch is committed.
    """
    sink = Sink(bench, group_bytes_max=1_000)
    first = sink.stage(rows(*[b"%03d" % number for number in range(20)]), 0)
    decided, other = sink.stage(rows(b"decided"), 1, attempt=1), sink.stage(rows(b"other"), 1, attempt=2)
    sink.ledger.prepare("s", 0, [first])
    sink.ledger.prepare("s", 1, [decided])
    run = sink.ledger.begin("s", 0, [first])
    while not run.finished and steps:
        sink.ledger.step(run)
        steps -= 1
    bench.reopen()
    again = Sink(bench, group_bytes_max=1_000)
    for run in again.ledger.unfinished():
        while not run.finished:
            again.ledger.step(run)
    bench.settle()
    assert again.ledger.expire(1_000) == 1, "the attempt that is not prepared"
    assert again.stages.find(AttemptKey("s", 1, 0, 1)) is not None
    with pytest.raises(Refused, match="prepared here for a commit at another broker group"):
        again.commit(1, [(other[0], other[1], 0)])
    assert again.commit(1, [decided])
    assert again.bodies()[-1] == b"decided"


@pytest.mark.parametrize("steps", [0, 2, 99])
def test_the_plan_of_other_groups_is_decided_with_the_rows(bench, rows, steps) -> None:
    """It is there after a restart in the middle of the commit too, and the first one counts."""
    sink = Sink(bench, group_bytes_max=1_000)
    handle = sink.stage(rows(*[b"%03d" % number for number in range(20)]), 4)
    plan = [("broker-b", [(0, 7, 5), (1, 8, 1)])]
    run = sink.ledger.begin("s", 4, [handle], plan)
    while not run.finished and steps:
        sink.ledger.step(run)
        steps -= 1
    decided = run.done > 0
    bench.reopen()
    again = Sink(bench, group_bytes_max=1_000)
    run = again.ledger.begin("s", 4, [handle], [("broker-c", [])])
    while run is not None and not run.finished:
        again.ledger.step(run)
    bench.settle()
    assert again.ledger.plan("s") == (plan if decided else [("broker-c", [])])
    assert len(again.bodies()) == 20
    assert again.ledger.plan("nobody") == []
    assert again.commit(5, [again.stage(rows(b"next"), 5)])
    assert again.ledger.plan("s") == []


def test_rows_that_are_not_confirmed_yet_are_not_missing(bench, rows) -> None:
    """The commit is refused for a time, not for good."""
    sink = Sink(bench)
    found = sink.stages.open(AttemptKey("s", 0, 0, 0), 0)
    bench.settle()
    bench.store.append(Placed(hide(rows(b"1")[0]), [(found.queue_id,)]))
    with pytest.raises(Refused) as refused:
        sink.ledger.begin("s", 0, [(0, 0, 1)])
    assert refused.value.code == ResponseCode.SERVICE_NOT_AVAILABLE
    bench.settle()
    assert sink.commit(0, [(0, 0, 1)])
    assert sink.bodies() == [b"1"]
