"""Replicas live by heartbeats, die by silence or with their connection, and are presumed alive for a while."""

from __future__ import annotations

from controller.replicas.group import Live, LiveTable


def test_heartbeats_and_silence():
    """Dead exactly at the deadline, reported once; a shorter limit of its own counts, a longer one does not."""
    table = LiveTable(2_000)
    assert table.beat(("g", 1), 0, Live(1, 5), confirm_offset=4, timeout_ms=99_999)
    assert not table.beat(("g", 1), 1_000, Live(1, 6))
    table.beat(("g", 2), 1_000, Live(1, 7), timeout_ms=500)
    assert table.candidates("g") == {1: Live(1, 6), 2: Live(1, 7)}
    assert table.tick(1_499) == []
    assert table.tick(1_500) == [("g", 2)]
    assert table.tick(3_000) == [("g", 1)]
    assert table.tick(9_000) == []
    assert table.alive("g") == ()


def test_a_connection_ends_only_replicas_that_still_use_it():
    """One that reconnected stays alive."""
    table = LiveTable(2_000)
    old, new = object(), object()
    table.beat(("g", 1), 0, Live(), channel=old)
    table.beat(("g", 2), 0, Live(), channel=old)
    table.beat(("g", 1), 1, Live(), channel=new)
    assert table.channel_lost(old) == [("g", 2)]
    assert table.alive("g") == (1,)


def test_presumed_replicas_stay_and_are_no_candidates():
    """For one time limit, unless a heartbeat extends it."""
    table = LiveTable(2_000)
    table.presume(("g", 1), 0)
    table.beat(("g", 2), 0, Live())
    table.presume(("g", 2), 1_000)
    assert (table.alive("g"), set(table.candidates("g"))) == ((1, 2), {2})
    assert table.life(("g", 1)).live is None
    assert table.tick(2_000) == [("g", 1), ("g", 2)]
    assert table.beat(("g", 1), 2_000, Live())


def test_forgetting():
    """Known or not."""
    table = LiveTable(2_000)
    table.beat(("g", 1), 0, Live())
    table.forget("g", 1)
    table.forget("x", 1)
    assert (table.alive("g"), table.life(("g", 1))) == ((), None)


def test_a_pause_of_the_controller_kills_no_replica():
    table = LiveTable(2_000, tick_interval_ms=200)
    table.beat(("g", 1), 0, Live())
    table.presume(("h", 1), 0)
    assert table.tick(200) == []
    assert table.tick(30_400) == []  # stopped for thirty seconds
    assert table.alive("g") == table.alive("h") == (1,)
    table.beat(("h", 1), 30_401, Live())
    assert [table.tick(now_ms) for now_ms in range(30_600, 32_000, 200)] == [[]] * 7
    assert table.tick(32_000) == [("g", 1)]
    assert table.alive("h") == (1,)


def test_a_pause_before_the_first_tick_kills_no_replica():
    """Neither those with heartbeats nor those presumed alive."""
    beaten, presumed = LiveTable(2_000, tick_interval_ms=200), LiveTable(2_000, tick_interval_ms=200)
    beaten.beat(("g", 1), 0, Live())
    presumed.presume(("g", 1), 0)
    for table in (beaten, presumed):
        assert table.tick(30_000) == []  # stopped before it ever ticked
        assert [table.tick(now_ms) for now_ms in range(30_200, 31_800, 200)] == [[]] * 8
        assert table.tick(31_800) == [("g", 1)]
