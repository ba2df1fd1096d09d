"""The compiled twin of the read side accepts and refuses what the pure one does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remoting.native import core as native
from remoting.native.contracts import Progress
from remoting.native.vectors import arange, column, cumsum, full
from remoting.protocol.records.names import light_queue_name, topic_key
from tests.sim.batches import Bench, bare, messages
from tests.sim.keyed import back_to_back, fields


@pytest.fixture(autouse=True)
def _both_twins(twin: str) -> None:
    if twin != "compiled":
        pytest.skip("compared once, where the compiled twin is in place")


@settings(deadline=None, max_examples=120)
@given(
    st.lists(st.tuples(st.lists(messages(), max_size=4), st.booleans()), max_size=4),
    st.lists(st.tuples(st.integers(0, 4095), st.integers(0, 255)), max_size=2),
    st.integers(0, 4),
)
def test_twins_agree_on_any_segment(appends: Any, damage: list[tuple[int, int]], epoch: int) -> None:
    """Whatever was written and however it was changed: the same end, the same reason, the same entries."""
    pure, compiled = native.pure_core(), native.compiled_core()
    bench = Bench(pure, segment=4096)
    data = bytearray(4096)
    for batch, atomic in appends:
        made = bench.encode([*batch, bare(b"state")], atomic=atomic)
        for position, piece in made.pieces:
            data[position : position + len(piece)] = piece
    end = min(bench.position, 4096)
    clean = memoryview(bytes(data))
    for at, value in damage:
        data[at] = value
    start = Progress(0, 0, epoch, 0, 0, group_open=False)
    view = memoryview(data)
    assert pure.scan(view, 0, 4096, start) == compiled.scan(view, 0, 4096, start)
    for wanted in range(0, end, 72):
        assert pure.record_end(view, 0, 0, wanted, end) == compiled.record_end(view, 0, 0, wanted, end)
    ours, theirs = (core.collect(clean, 0, 0, end, end // 3, end // 2, 50) for core in (pure, compiled))
    assert (ours[:2], ours[2].columns(), ours[3]) == (theirs[:2], theirs[2].columns(), theirs[3])
    ours, theirs = (core.survey(clean, 0, 0, end) for core in (pure, compiled))
    assert (ours[0], ours[2]) == (theirs[0], theirs[2])
    assert [(column.kind, column.tolist()) for column in ours[1]] == [
        (column.kind, column.tolist()) for column in theirs[1]
    ]


def test_gather_refuses_what_lies_outside() -> None:
    """A span outside the source, an output of another size."""
    gather = native.compiled_core().gather
    for starts, sizes, room in (([8], [16], 16), ([-8], [8], 8), ([0], [8], 16), ([0], [16], 8)):
        with pytest.raises(AssertionError):
            gather(memoryview(bytes(16)), column(starts, "q"), column(sizes, "q"), memoryview(bytearray(room)))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(1, 3)), max_size=30), st.integers(0, 30))
def test_twins_agree_on_what_follows(rows: list[tuple[int, int, int]], damage: int) -> None:
    """The same entries out of order, the same numbers afterwards."""
    columns = [column([row[at] for row in rows], kind) for at, kind in ((0, "I"), (1, "q"), (2, "I"))]
    positions = arange(0, len(rows))
    found = []
    for core in (native.pure_core(), native.compiled_core()):
        following, newest = full(4, -1, "q"), full(4, -1, "q")
        wrong = core.follow(columns[0], columns[1], positions, columns[2], following, newest, damage)
        found.append((wrong, following.tolist(), newest.tolist()))
    assert found[0] == found[1]


NAMES = st.one_of(
    st.text("ab/+# \x00%2F", max_size=5).map(lambda topic: light_queue_name(topic.encode())),
    st.lists(st.sampled_from([b"%LMQ%", b"%", b"2", b"F", b"f", b"61", b"a", b"/", b"\xff"]), max_size=5).map(b"".join),
)


@given(st.lists(st.tuples(NAMES, st.booleans()), max_size=20))
def test_twins_find_the_same_topics(named: list[tuple[bytes, bool]]) -> None:
    """Those of exact light queues whose names are as they are written, without the rows that have none."""
    lengths = column([len(name) for name, _live in named], "I")
    ends = cumsum(lengths).tolist()
    starts = column([end - len(name) if live else -1 for end, (name, live) in zip(ends, named, strict=True)], "q")
    expected = [key for name, live in named if live and (key := topic_key(name)) is not None]
    for core in (native.pure_core(), native.compiled_core()):
        assert core.topic_keys(bytearray(b"".join(name for name, _live in named)), starts, lengths) == expected


def test_names_outside_are_refused() -> None:
    """A row that says more than there is."""
    for core in (native.pure_core(), native.compiled_core()):
        with pytest.raises(AssertionError):
            core.topic_keys(b"%LMQ%a", column([1], "q"), column([6], "I"))


@given(st.lists(st.binary(max_size=9)))
def test_twins_hash_as_python_does(names: list[bytes]) -> None:
    """Names back to back."""
    lengths = column([len(name) for name in names], "q")
    starts = cumsum(lengths) - lengths
    for core in (native.pure_core(), native.compiled_core()):
        codes = core.hash_spans(bytearray(b"".join(names)), starts, lengths)
        assert codes.tolist() == [hash(name) & 0xFFFFFFFF for name in names]


@pytest.fixture(autouse=True)
def _both_twins(twin: str) -> None:
    if twin != "compiled":
        pytest.skip("compared once, where the compiled twin is in place")


@settings(deadline=None, max_examples=150)
@given(st.lists(fields(), max_size=6), st.integers(64, 200))
def test_twins_agree_on_any_records(records: list[dict[str, Any]], capacity: int) -> None:
    """The same entries, and the same record is the first that does not fit."""
    data, _ = back_to_back(records, base=800)
    seen = []
    for core in (native.pure_core(), native.compiled_core()):
        chunk = core.make_key_chunk(capacity)
        stopped = chunk.take(data, 800, 800, 800 + len(data))
        seen.append((stopped, chunk.count, chunk.capacity, [column.tolist() for column in chunk.columns()]))
    assert seen[0] == seen[1]


def test_what_lies_outside_is_refused() -> None:
    """Positions before the buffer or after its end."""
    chunk = native.compiled_core().make_key_chunk(64)
    for base, position, end in ((8, 0, 8), (0, 0, 100)):
        with pytest.raises(AssertionError):
            chunk.take(bytes(80), base, position, end)
