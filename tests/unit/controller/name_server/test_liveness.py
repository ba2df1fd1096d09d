"""Deadlines move with heartbeats; the dead are reported once."""

from __future__ import annotations

from controller.name_server.state import Liveness

KEY, OTHER = ("C", "h:1"), ("C", "h:2")


def test_silence_kills_and_a_beat_prolongs():
    liveness = Liveness(100)
    liveness.add(KEY, 0)
    liveness.add(OTHER, 0)
    assert liveness.beat(KEY, 60)
    assert liveness.tick(99) == []
    assert liveness.tick(100) == [OTHER]
    assert OTHER not in liveness
    assert not liveness.beat(OTHER, 101)
    assert liveness.tick(159) == []
    assert liveness.tick(160) == [KEY]
    assert liveness.tick(1_000) == []
    assert len(liveness) == 0


def test_a_broker_may_name_its_own_limit():
    liveness = Liveness(100)
    liveness.add(KEY, 0, 10)
    assert liveness.tick(10) == [KEY]
    liveness.add(KEY, 0, 0)
    liveness.beat(KEY, 0, 500)
    assert liveness.tick(499) == []
    liveness.beat(KEY, 499)
    assert liveness.tick(998) == []


def test_a_broken_connection_shortens_never_prolongs():
    liveness = Liveness(100)
    liveness.add(KEY, 0)
    liveness.shorten(KEY, 10, 5)
    assert liveness.tick(14) == []
    assert liveness.beat(KEY, 14)
    assert liveness.tick(113) == []
    liveness.shorten(KEY, 110, 50)
    assert liveness.tick(114) == [KEY]
    liveness.shorten(KEY, 200, 5)
    liveness.add(KEY, 200)
    liveness.forget(KEY)
    assert liveness.tick(1_000) == []


def test_a_pause_of_the_name_server_kills_no_broker():
    liveness = Liveness(1_000, tick_interval_ms=100)
    liveness.add(KEY, 0)
    liveness.add(OTHER, 0)
    assert liveness.tick(100) == []
    assert liveness.tick(20_200) == []  # stopped for twenty seconds; what KEY sent meanwhile is read now
    assert liveness.beat(KEY, 20_201)
    assert [liveness.tick(now_ms) for now_ms in range(20_300, 21_000, 100)] == [[]] * 7
    assert liveness.tick(21_000) == [OTHER]  # and one that is silent while the name server runs is dead after its limit
    assert KEY in liveness


def test_a_pause_before_the_first_tick_kills_no_broker():
    liveness = Liveness(1_000, tick_interval_ms=100)
    liveness.add(KEY, 0)
    assert liveness.tick(5_000) == []
    assert liveness.beat(KEY, 5_001)
