"""Which replicas are alive, with the content of their last heartbeat: soft state of each controller, never in the log.

Invariant: a replica is reported dead once; only a heartbeat makes it alive again. What a controller presumes alive when
it begins to lead holds the master's place for one time limit, but is never a candidate. Time in which this process
stood still is nobody's silence: it moves every deadline.
Pure: time comes in as a number of milliseconds that only grows.

How long this process itself stood still: silence of others in that time is no sign of failure.

A process without CPU, or stopped, finds all deadlines passed at its first tick, and the heartbeats that came meanwhile
unread in its sockets. Invariant: only what exceeds twice the interval between ticks counts as a pause, so that ordinary
lateness moves no deadline. Pure: time comes in as a number of milliseconds that only grows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from controller.replicas.group import Live


class OwnPause:
    """Watches the ticks of one table of deadlines."""

    __slots__ = ("_interval_ms", "_last_ms")

    def __init__(self, interval_ms: int) -> None:
        """`interval_ms`: how often `tick` is called by a process that runs; 0: pauses are not detected."""
        self._interval_ms = interval_ms
        self._last_ms: int | None = None

    def begin(self, now_ms: int) -> None:
        """There is something to watch over from now on: a pause may come before the first tick."""
        if self._last_ms is None:
            self._last_ms = now_ms

    def tick(self, now_ms: int) -> int:
        """Milliseconds by which this tick came too late because the process stood still."""
        last_ms, self._last_ms = self._last_ms, now_ms
        if last_ms is None or not self._interval_ms:
            return 0
        late_ms = now_ms - last_ms - self._interval_ms
        return late_ms if late_ms > self._interval_ms else 0


ReplicaKey = tuple[str, int]
"""(group, broker id)."""


@dataclass(slots=True)
class Life:
    """One replica that shows itself."""

    deadline_ms: int
    live: Live | None
    """None: presumed; this controller has received no heartbeat of it."""
    confirm_offset: int = -1
    channel: object = None
    """The connection of the last heartbeat; its end is the replica's."""


class LiveTable:
    """Deadlines of replicas."""

    def __init__(self, timeout_ms: int, tick_interval_ms: int = 0) -> None:
        """`tick_interval_ms`: how often `tick` is called; 0: nothing is taken for a pause of our own."""
        self._timeout_ms = timeout_ms
        self._pause = OwnPause(tick_interval_ms)
        self._lives: dict[str, dict[int, Life]] = {}

    def beat(
        self,
        key: ReplicaKey,
        now_ms: int,
        live: Live,
        *,
        confirm_offset: int = -1,
        channel: object = None,
        timeout_ms: int | None = None,
    ) -> bool:
        """A heartbeat; True when the replica was not alive before."""
        self._pause.begin(now_ms)
        limit = min(timeout_ms, self._timeout_ms) if timeout_ms is not None and timeout_ms > 0 else self._timeout_ms
        lives = self._lives.setdefault(key[0], {})
        known = lives.get(key[1])
        lives[key[1]] = Life(now_ms + limit, live, confirm_offset, channel)
        return known is None or known.live is None

    def presume(self, key: ReplicaKey, now_ms: int) -> None:
        """Give an unknown replica one time limit to send a heartbeat."""
        self._pause.begin(now_ms)
        self._lives.setdefault(key[0], {}).setdefault(key[1], Life(now_ms + self._timeout_ms, None))

    def channel_lost(self, channel: object) -> list[ReplicaKey]:
        """A connection ended: the replicas that beat on it last are dead at once."""
        return self._remove(lambda life: life.channel is channel)

    def tick(self, now_ms: int) -> list[ReplicaKey]:
        """The replicas whose deadline has passed; they are dead."""
        pause_ms = self._pause.tick(now_ms)
        if pause_ms:
            for lives in self._lives.values():
                for life in lives.values():
                    life.deadline_ms += pause_ms
        return self._remove(lambda life: life.deadline_ms <= now_ms)

    def forget(self, group: str, broker_id: int) -> None:
        """The replica does not belong to its group any more."""
        self._lives.get(group, {}).pop(broker_id, None)

    def alive(self, group: str) -> tuple[int, ...]:
        """Ids of the replicas of a group that are or may be alive."""
        return tuple(sorted(self._lives.get(group, {})))

    def candidates(self, group: str) -> dict[int, Live]:
        """Ids of the replicas that sent heartbeats, with the state of their logs."""
        return {each: life.live for each, life in self._lives.get(group, {}).items() if life.live is not None}

    def life(self, key: ReplicaKey) -> Life | None:
        """All that is known of one replica."""
        return self._lives.get(key[0], {}).get(key[1])

    def _remove(self, is_dead: Callable[[Life], bool]) -> list[ReplicaKey]:
        dead = [(group, each) for group, lives in self._lives.items() for each, life in lives.items() if is_dead(life)]
        for group, each in dead:
            del self._lives[group][each]
        return dead
