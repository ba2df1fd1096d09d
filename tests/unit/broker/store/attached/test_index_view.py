"""Tail and runs together, while entries move from one to the other."""

from __future__ import annotations

import pytest

from broker.store.attached import index_view
from broker.store.attached.index_view import IndexView
from broker.store.attached.tail_view import Moved, TailView


def view_of(pair) -> IndexView:
    return IndexView(pair.directory / "index", TailView(pair.directory / "index" / "tail"))


def test_a_read_across_runs_and_tail(pair) -> None:
    for _ in range(2):
        pair.append(10)
        pair.make_run()
    pair.append(10)
    view = view_of(pair)
    assert view.read(pair.queue, 0, 100).offsets.tolist() == list(range(30))
    assert view.read(pair.queue, 15, 10).offsets.tolist() == list(range(15, 25))
    assert view.read(pair.queue, 25, 2).offsets.tolist() == [25, 26]
    assert view.position == pair.bench.store.confirm_position
    with pytest.raises(Moved, match="neither"):
        view.read(pair.queue, 30, 1)
    view.close()


def test_following_looks_at_new_entries_only(pair, monkeypatch: pytest.MonkeyPatch) -> None:
    view = view_of(pair)
    starts = []
    find = view.tail.find
    monkeypatch.setattr(view.tail, "find", lambda *wanted: starts.append(wanted[3]) or find(*wanted))
    for turn in range(4):
        pair.append(5)
        assert view.read(pair.queue, 5 * turn, 5).end == 5 * turn + 5
    assert starts == [starts[0] + 5 * turn for turn in range(4)]
    assert view.read(pair.queue, 3, 1).offsets.tolist() == [3], "going back looks from the beginning"
    assert starts[-1] == starts[0]
    pair.make_run()
    pair.append(5)
    assert view.read(pair.queue, 20, 5).end == 25, "a place that is gone is not used"
    view.close()


def test_entries_that_move_into_a_run_during_the_look(pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between looking at the runs and at the tail everything moved: nothing is missing, the look says so."""
    pair.append(20)
    view = view_of(pair)
    load = view._runs.load

    def then_all_moves(generation: int) -> None:
        load(generation)
        if not pair.bench.store._parts.opened.index.runs:
            pair.make_run()

    monkeypatch.setattr(view._runs, "load", then_all_moves)
    with pytest.raises(Moved):
        view.read(pair.queue, 0, 100)
    assert view.read(pair.queue, 0, 100).offsets.tolist() == list(range(20))
    view.close()


def test_the_oldest_offset(pair, monkeypatch: pytest.MonkeyPatch) -> None:
    view = view_of(pair)
    assert view.min_offset(pair.queue) == 0
    pair.append(400)
    pair.append(2, pair.other)
    base = pair.bench.store._log.segments[1].base
    pair.expire(base)
    wanted = pair.bench.store.reading.bounds(pair.queue)[0]
    assert wanted > 0
    assert view.min_offset(pair.queue) == wanted
    monkeypatch.setattr(view, "_look_up_minimum", lambda queue: pytest.fail("looked up twice"))
    assert view.min_offset(pair.queue) == wanted
    monkeypatch.undo()
    monkeypatch.setattr(index_view, "REMEMBERED_MAX", 1)
    assert view.min_offset(pair.other) == 0
    assert view.min_offset(pair.queue) == wanted
    pair.append(1)
    view.read(pair.queue, 400, 1)
    view.read(pair.other, 0, 1)
    assert len(view._places) <= 1
    view.close()


def test_a_queue_whose_records_are_all_gone(pair) -> None:
    pair.append(3, pair.other)
    pair.append(400)
    pair.expire(pair.bench.store._log.segments[1].base)
    view = view_of(pair)
    assert view.min_offset(pair.other) == view.confirmed_end(pair.other) == 3
    pair.append(1, pair.other)
    assert view.min_offset(pair.other) == 3
    assert view.read(pair.other, 3, 1).end == 4
    view.close()
