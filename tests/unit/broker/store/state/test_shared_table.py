"""Keys in small dicts that a frozen copy shares."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.store.state.state_tables import SHARDS, SharedTable

KEYS = st.integers(0, 40).map(lambda number: b"key-%d" % number)


@given(st.lists(st.one_of(st.tuples(KEYS, st.integers()), KEYS, st.none()), max_size=120))
def test_against_a_dict(steps) -> None:
    """Set, delete and freeze in any order: the table is a dict, and each frozen copy what the dict was then."""
    table, meant, copies = SharedTable(), {}, []
    for step in steps:
        if step is None:
            copies.append((table.freeze(), dict(meant)))
        elif isinstance(step, tuple):
            table.put(step[0], (b"v", step[1]))
            meant[step[0]] = (b"v", step[1])
        else:
            table.discard(step)
            meant.pop(step, None)
        assert (dict(table.items()), table.count) == (meant, len(meant))
    assert all(table.get(b"key-%d" % n) == meant.get(b"key-%d" % n) for n in range(41))
    for shards, then in copies:
        assert {key: entry for shard in shards for key, entry in shard.items()} == then


def test_a_change_copies_one_small_dict() -> None:
    """The other ones stay shared, however many keys there are."""
    table = SharedTable()
    for number in range(20 * SHARDS):
        table.put(b"%d" % number, (b"", number))
    frozen = table.freeze()
    table.put(b"7", (b"new", 1))
    table.discard(b"7")
    table.discard(b"nobody")
    assert sum(table.shard(at) is not frozen[at] for at in range(SHARDS)) == 1
