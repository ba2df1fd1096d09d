"""How many retained messages, and how large together."""

from __future__ import annotations

import pytest

from broker.retained.retained import Retained, RetainedQuota
from broker.store.state import state_kinds
from broker.store.state.state_log import StateChange
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode


class World:
    """Retained messages are state entries here."""

    def __init__(self, bench, messages_max: int = 0, bytes_max: int = 0) -> None:
        self.store = bench.store
        self.retained = Retained(bench.store)
        self.quota = RetainedQuota(bench.store, self.retained, messages_max=messages_max, bytes_max=bytes_max)

    def put(self, *wanted: tuple[bytes, int]) -> None:
        self.quota.admit(wanted)
        for topic, size in wanted:
            self.store.append_state([StateChange(state_kinds.RETAINED, topic, b"" if size else None)])


def refused(world: World, *wanted: tuple[bytes, int]) -> bool:
    with pytest.raises(Refused) as error:
        world.put(*wanted)
    return error.value.code == ResponseCode.FLOW_CONTROL


def test_without_a_quota_nobody_asks(bench) -> None:
    """And nothing is kept."""
    world = World(bench)
    assert not world.quota.active
    world.quota.admit([(b"a", 10**9)])
    world.quota.seen(b"a", 5)
    assert world.quota.size_bytes == 0


def test_so_many_topics(bench) -> None:
    """Replacing and clearing are always possible; several of one frame count together."""
    world = World(bench, messages_max=3)
    world.put((b"a", 1), (b"b", 1))
    assert refused(world, (b"c", 1), (b"d", 1))
    world.put((b"c", 1), (b"c", 2))
    assert refused(world, (b"d", 1))
    world.put((b"a", 9))
    world.put((b"b", 0))
    world.put((b"d", 1), (b"nothing", 0))
    assert len(world.retained) == 3


def test_so_many_bytes(bench) -> None:
    """A smaller one in its place gives back; what is cleared too; getting smaller is possible above the limit."""
    world = World(bench, bytes_max=100)
    world.put((b"a", 60), (b"b", 40))
    assert world.quota.size_bytes == 100
    assert refused(world, (b"c", 1))
    assert refused(world, (b"a", 61))
    world.put((b"a", 50))
    world.put((b"c", 10))
    world.put((b"b", 0))
    assert world.quota.size_bytes == 60
    world.quota.seen(b"old", 1_000)
    world.quota.seen(b"a", 1)
    assert world.quota.size_bytes == 1_060
    assert refused(world, (b"d", 1))
    world.put((b"a", 10))
    assert world.quota.size_bytes == 1_020


@pytest.mark.parametrize("limit", ["messages_max", "bytes_max"])
def test_a_refused_frame_leaves_nothing_behind(bench, limit: str) -> None:
    """All or none."""
    world = World(bench, **{limit: 1})
    assert refused(world, (b"a", 1), (b"b", 1))
    assert world.quota.size_bytes == 0
    world.put((b"b", 1))
