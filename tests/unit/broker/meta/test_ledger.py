"""Exactly once: a commit shows the listed rows once, at whatever point it was interrupted."""

from __future__ import annotations

import pytest

from broker.api.append import entry_message
from broker.meta.dispatch import Dispatcher
from broker.meta.filters import Filters
from broker.meta.ledger import NO_BATCH, SinkLedger
from broker.meta.placement import Placement
from broker.meta.stages import AttemptKey, Stages
from broker.meta.topics import Topics
from remoting.protocol import names
from remoting.protocol.errors import Refused
from remoting.protocol.record import RecordView


class Sink:
    """One broker's staging, placement and ledger over a store that can be reopened."""

    def __init__(self, bench, *, group_bytes_max: int = 1_000_000) -> None:
        self.bench = bench
        store = bench.store
        topics = Topics(store, topics_max=10)
        filters = Filters(store, expiry_ms=0, filters_max=10, now_ms=0)
        dispatcher = Dispatcher(store, topics, filters, cached_topics_max=10, queue_count=1)
        limits = {"message_size_bytes_max": 1_000, "properties_bytes_max": 1_000}
        placement = Placement(topics, dispatcher, queue_count=1, auto_create=True, **limits)
        self.stages = Stages(store, expiry_ms=1_000, attempts_max=100, now_ms=0)
        self.ledger = SinkLedger(store, self.stages, placement, group_bytes_max=group_bytes_max)

    def stage(self, entries, batch: int, partition: int = 0, attempt: int = 0) -> tuple[int, int, int]:
        found = self.stages.open(AttemptKey("s", batch, partition, attempt), 0)
        messages = [self.stages.stage(entry_message(e), e.kind, e.queue_index, found) for e in entries]
        self.bench.store.append(messages)
        self.bench.settle()
        return partition, attempt, len(entries)

    def commit(self, batch: int, handles) -> bool:
        run = self.ledger.begin("s", batch, handles)
        while run is not None and not run.finished:
            self.ledger.step(run)
        self.bench.settle()
        return run is not None

    def bodies(self) -> list[bytes]:
        queue_id = self.bench.store.find_queue(names.light_queue_name(b"out/x"))
        if queue_id is None:
            return []
        return [bytes(RecordView(r).body) for r in self.bench.store.read(queue_id, 0, 999, 999_999).records]


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


def test_an_empty_batch_is_committed_too(bench) -> None:
    sink = Sink(bench)
    assert sink.commit(0, [])
    assert sink.commit(1, [(0, 0, 0)])
    assert sink.ledger.last_batch("s")[0] == 1


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_large_commit_goes_on_after_a_restart_with_the_attempts_it_began_with(bench, rows, steps) -> None:
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
        ((0, 0, 3), "its handle says 3"),
        ((0, 0, 1), "its handle says 1"),
        ((7, 0, 1), "not staged"),
    ):
        with pytest.raises(Refused, match=reason):
            sink.commit(0, [handle])
    assert sink.bodies() == []
    assert sink.commit(0, [(0, 0, 2)])


def test_abort_and_expiry_forget_what_was_not_committed(bench, rows) -> None:
    sink = Sink(bench)
    handle = sink.stage(rows(b"1"), 0)
    assert sink.ledger.abort("s", 0) == 1
    with pytest.raises(Refused):
        sink.commit(0, [handle])
    sink.stage(rows(b"2"), 1)
    assert sink.ledger.expire(1_000) == 1
    assert sink.bodies() == []
