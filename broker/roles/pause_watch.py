"""Whether a master may answer: one that stood still may have been replaced, and learns first that it was not.

    running ──(the loop did not run for `limit_ms`)──▶ in doubt ──(proof)──▶ running
    proof   of a master: the controllers' answer to a question asked since that it is the master in its epoch, or every
            member in sync has come anew since and knows no newer epoch, or no other member is in sync
            of a replica: the controllers' answer to a question asked since, whatever it says

The controllers elect another master when they have not heard this one for `heartbeat_timeout_ms`; `limit_ms` is so much
shorter that the last heartbeat before a shorter pause is still young. There is one watch for the whole process, because
what makes a replica the master may have waited in a socket while it stood still and be out of date. Connections of
members are ended when the doubt begins: what they said may be older than it, a greeting on a new one is not.
Invariant: between the end of a pause and a proof `may_answer` is false, whoever asks first. A master that has run all
the time is never in doubt, with the controllers or without. Pure: the shell hands in the time.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.replication.leader import Leader


def pause_limit_ms(heartbeat_interval_ms: int, heartbeat_timeout_ms: int) -> int:
    """The longest time without a turn of the loop after which no other master can have been elected."""
    return max(heartbeat_interval_ms, heartbeat_timeout_ms - 2 * heartbeat_interval_ms)


class PauseWatch:
    """The doubts of one process; `doubtful` is called with the milliseconds when one begins."""

    def __init__(self, limit_ms: int, now_ms: Callable[[], int], doubtful: Callable[[int], None]) -> None:
        self.limit_ms = limit_ms
        self._now_ms = now_ms
        self._doubtful = doubtful
        self._ran_ms = now_ms()
        self._since_ms: int | None = None
        self._leader: Leader | None = None
        self._told: Callable[[], None] = _nobody
        self.pauses = 0
        """Times at which it was in doubt."""

    def lead(self, leader: Leader | None, doubtful: Callable[[], None] | None = None) -> None:
        """This process is the master in the leader's epoch from now on, or no master any more.

        `doubtful` is called when a doubt begins: what was about to be answered must not be.
        """
        self._leader, self._told = leader, doubtful or _nobody

    def may_answer(self) -> bool:
        """Whether this broker is still the master for all it must know. Cheap: one look at the clock."""
        now_ms = self._now_ms()
        paused_ms = now_ms - self._ran_ms
        self._ran_ms = now_ms
        if paused_ms > self.limit_ms:
            self._since_ms = now_ms
            self.pauses += 1
            self._told()
            self._doubtful(paused_ms)
        return self._since_ms is None

    def tick(self) -> bool:
        """Look at the clock and at the members; True when they have just ended a master's doubt."""
        if self.may_answer() or not self._members_prove():
            return False
        self._since_ms = None
        return True

    def confirmed(self, epoch: int, master: int | None, asked_ms: int) -> bool:
        """The controllers' answer to a question of `asked_ms`; True when it has ended a master's doubt."""
        if self._since_ms is None or asked_ms < self._since_ms:
            return False
        leader = self._leader
        if leader is not None and (epoch, master) != (leader.epoch, leader.broker):
            return False
        self._since_ms = None
        return leader is not None

    def _members_prove(self) -> bool:
        leader, since_ms = self._leader, self._since_ms
        assert since_ms is not None
        if leader is None or leader.superseded:
            return False
        came = {each.broker for each in leader.replicas() if each.came_ms > since_ms}
        return leader.members.effective - {leader.broker} <= came


def _nobody() -> None:
    """Hear of a doubt while there is no master to doubt."""
