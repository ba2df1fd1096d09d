"""Times of a simulated cluster: those of the product, or much shorter ones, in which everything happens at once."""

from __future__ import annotations

from dataclasses import dataclass

from broker.replication.leader import LeaderSettings
from broker.roles.steps import pause_limit_ms

BEAT_TICKS = 2
"""Ticks between two heartbeats of a broker."""

_SETTINGS = LeaderSettings(window_bytes=600, part_bytes=150, small_bytes=60, pause_bytes=40)
"""A pause is much shorter than what a storm is about: there is none in one."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The speed of everything: the product's times, or much shorter ones, for more elections in fewer events."""

    tick_ms: float = 250.0
    answer_ms: float = 700.0
    silence_ms: float = 1_500.0
    live_ms: int = 2_000
    scan_ms: float = 200.0
    leaderless_ms: float = 400.0
    check_ms: int = 500
    """Between two checks of a master while nothing happens."""
    faults_ticks: int = 28
    settings: LeaderSettings = _SETTINGS

    @property
    def pause_limit_ms(self) -> int:
        """The longest stall after which a master may still answer."""
        return pause_limit_ms(int(BEAT_TICKS * self.tick_ms), self.live_ms)


USUAL = Pace()
STORM = Pace(
    tick_ms=60.0,
    answer_ms=250.0,
    silence_ms=400.0,
    live_ms=350,
    scan_ms=40.0,
    leaderless_ms=100.0,
    check_ms=120,
    faults_ticks=60,
    settings=LeaderSettings(
        window_bytes=400, part_bytes=100, small_bytes=60, heartbeat_ms=120, silence_ms=500, lag_ms=600, absence_ms=200
    ),
)
