"""Whether a master may answer: one that stood still may have been replaced, and learns first that it was not.

    running ──(the loop did not run for `limit_ms`)──▶ in doubt ──(proof)──▶ running
    proof   an answer of the controllers, asked for since, that this broker is the master in this epoch;
            or something from every member in sync, `SETTLE_MS` after the doubt began; or no other member is in sync

The controllers elect another master when they have not heard this one for `heartbeat_timeout_ms`; `limit_ms` is so much
shorter that the last heartbeat before a shorter pause is still young. What lay in the sockets during the pause is read
at once, so what a member says later was said after it: one that follows a new master, or is the new master, has ended
its connection. Invariant: between the end of a pause and a proof `may_answer` is false, whoever asks first. A master
that has run all the time is never in doubt, with the controllers or without. Pure: the shell hands in the time.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.replication.leader import Leader

SETTLE_MS = 200
"""Until then what a member says may have waited in a socket since before the pause."""


def pause_limit_ms(heartbeat_interval_ms: int, heartbeat_timeout_ms: int) -> int:
    """The longest time without a turn of the loop after which no other master can have been elected."""
    return max(heartbeat_interval_ms, heartbeat_timeout_ms - 2 * heartbeat_interval_ms)


class PauseWatch:
    """The doubts of one master in one epoch; `doubtful` is called when one begins."""

    def __init__(
        self, leader: Leader, limit_ms: int, now_ms: Callable[[], int], doubtful: Callable[[int], None]
    ) -> None:
        self._leader = leader
        self._limit_ms = limit_ms
        self._now_ms = now_ms
        self._doubtful = doubtful
        self._ran_ms = now_ms()
        self._since_ms: int | None = None
        self.pauses = 0
        """Times at which it was in doubt."""

    def may_answer(self) -> bool:
        """Whether this broker is still the master for all it must know. Cheap: one look at the clock."""
        now_ms = self._now_ms()
        paused_ms = now_ms - self._ran_ms
        self._ran_ms = now_ms
        if paused_ms > self._limit_ms:
            self._since_ms = now_ms
            self.pauses += 1
            self._doubtful(paused_ms)
        return self._since_ms is None

    def tick(self) -> bool:
        """Look at the clock and at the members; True when a doubt has just ended."""
        if self.may_answer() or not self._members_prove():
            return False
        self._since_ms = None
        return True

    def confirmed(self, epoch: int, master: int | None, asked_ms: int) -> bool:
        """The controllers' answer to a question of `asked_ms`; True when it has ended a doubt."""
        if self._since_ms is None or asked_ms < self._since_ms:
            return False
        if (epoch, master) != (self._leader.epoch, self._leader.broker):
            return False
        self._since_ms = None
        return True

    def _members_prove(self) -> bool:
        assert self._since_ms is not None
        leader, since_ms = self._leader, self._since_ms + SETTLE_MS
        heard_ms = {each.broker: each.heard_ms for each in leader.replicas()}
        others = leader.members.effective - {leader.broker}
        return not leader.superseded and all(heard_ms.get(broker, -1) > since_ms for broker in others)
