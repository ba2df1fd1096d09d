"""Live brokers: every address has a deadline that its heartbeats move; past it, the broker is dead at the next tick.

Invariant: an address is reported dead once and then forgotten; only a new registration makes it known again. Time in
which this process stood still counts against no broker: it moves every deadline.
Pure: time is passed in as a growing number of milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from controller.replicas.live_table import OwnPause

BrokerKey = tuple[str, str]
"""(cluster, address): what heartbeats name."""


@dataclass(slots=True)
class _Life:
    timeout_ms: int
    deadline_ms: int


class Liveness:
    """Deadlines of broker addresses."""

    def __init__(self, timeout_ms: int, tick_interval_ms: int = 0) -> None:
        """`tick_interval_ms`: how often `tick` is called; 0: nothing is taken for a pause of our own."""
        self._timeout_ms = timeout_ms
        self._pause = OwnPause(tick_interval_ms)
        self._lives: dict[BrokerKey, _Life] = {}

    def __contains__(self, key: BrokerKey) -> bool:
        return key in self._lives

    def __len__(self) -> int:
        return len(self._lives)

    def add(self, key: BrokerKey, now_ms: int, timeout_ms: int | None = None) -> None:
        """A broker registered; without a time limit of its own the default holds."""
        self._pause.begin(now_ms)
        limit = timeout_ms if timeout_ms is not None and timeout_ms > 0 else self._timeout_ms
        self._lives[key] = _Life(limit, now_ms + limit)

    def beat(self, key: BrokerKey, now_ms: int, timeout_ms: int | None = None) -> bool:
        """A heartbeat: False when the address is not known, so that the broker must register again."""
        life = self._lives.get(key)
        if life is None:
            return False
        if timeout_ms is not None and timeout_ms > 0:
            life.timeout_ms = timeout_ms
        life.deadline_ms = now_ms + life.timeout_ms
        return True

    def shorten(self, key: BrokerKey, now_ms: int, grace_ms: int) -> None:
        """The broker's connection broke: it has only `grace_ms` left to show itself again."""
        life = self._lives.get(key)
        if life is not None:
            life.deadline_ms = min(life.deadline_ms, now_ms + grace_ms)

    def forget(self, key: BrokerKey) -> None:
        """The broker left in order, or was refused."""
        self._lives.pop(key, None)

    def tick(self, now_ms: int) -> list[BrokerKey]:
        """The addresses whose deadline has passed; they are forgotten."""
        pause_ms = self._pause.tick(now_ms)
        if pause_ms:
            for life in self._lives.values():
                life.deadline_ms += pause_ms
        dead = [key for key, life in self._lives.items() if life.deadline_ms <= now_ms]
        for key in dead:
            del self._lives[key]
        return dead
