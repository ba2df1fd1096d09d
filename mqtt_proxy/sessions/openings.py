"""The order of CONNECTs of one client id: one SESSION_OPEN under way, one CONNECT that waits, no queue.

    enter -> (nothing under way) -> open -> SESSION_OPEN -> answered -> the one that waits
             (something is)      -> waits; an earlier one that waits is superseded: CONNACK 0x89, or 3 in MQTT 3.1.1

Two devices with one client id take the session from each other as fast as they can connect. What that costs others is
bounded here: only the newest CONNECT asks the broker, an id whose connections were taken over again and again is opened
at a pace (`TAKE_OVERS_PER_S`, the first `TAKE_OVERS_BURST` at once), and while it is, a superseded client waits a while
for its refusal, since it will come again at once. A connection that another proxy takes counts as well, so the pace
holds for a fight between proxies.

Invariants: per client id at most one `open` is unanswered and at most one client waits; each client that enters is
opened, superseded, or told that it has left; a client is never superseded by one of another user. Ids that nobody
fights for cost nothing once they are open. Pure but for the timer: time comes from the clock. Loop rule: on the loop's
thread.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from mqtt_proxy.quotas import BucketTable
from runtime.clock import Clock

TAKE_OVERS_PER_S = 5.0
"""Connections of one client id that may be taken over in a second, in the long run."""
TAKE_OVERS_BURST = 10.0
"""Connections of one client id that may be taken over at once."""
SUPERSEDED_DELAY_MS = 1_000
"""How long a superseded client waits for its refusal while its client id is fought for."""


class PendingConnect(Protocol):
    """A CONNECT that was admitted."""

    @property
    def user(self) -> str | None:
        """Whose session it wants; None for an anonymous client."""

    @property
    def has_left(self) -> bool:
        """Whether its client has disconnected."""

    def open(self) -> None:
        """Take the client id and ask the broker; `Openings.answered` has to follow."""

    def superseded(self, delay_ms: int) -> None:
        """Refuse it, after this time: a newer CONNECT of the client id has come."""

    def left(self) -> None:
        """Its client disconnected while it waited: nothing else will find that out, since its socket is not read."""


class _ClientId:
    """The CONNECTs of one client id."""

    __slots__ = ("is_under_way", "timer", "waiting")

    def __init__(self) -> None:
        self.is_under_way = False
        self.waiting: PendingConnect | None = None
        self.timer: asyncio.TimerHandle | None = None


class Openings:
    """The CONNECTs of one proxy between their admission and their session."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ids: dict[str, _ClientId] = {}
        self._fights = BucketTable(TAKE_OVERS_PER_S, TAKE_OVERS_BURST)

    def __len__(self) -> int:
        """Client ids with a CONNECT here."""
        return len(self._ids)

    def foreign(self, client_id: str, user: str | None) -> bool:
        """Whether a client of another user waits for this id, and must not be superseded by this one."""
        known = self._ids.get(client_id)
        waiting = None if known is None else known.waiting
        return waiting is not None and not waiting.has_left and waiting.user != user

    def enter(self, client_id: str, opening: PendingConnect) -> None:
        """Open it as soon as its turn comes; an earlier one that waits is superseded."""
        known = self._ids.get(client_id)
        if known is None:
            known = self._ids[client_id] = _ClientId()
            if not self._wait_ms(client_id):  # nearly always
                self._open(client_id, known, opening)
                return
        elif known.waiting is not None:
            known.waiting.superseded(SUPERSEDED_DELAY_MS if self._is_fought_for(client_id) else 0)
        known.waiting = opening
        self._go_on(client_id, known)

    def answered(self, client_id: str) -> None:
        """The broker has answered what was opened last, and its client knows."""
        known = self._ids.get(client_id)
        if known is not None:
            known.is_under_way = False
            self._go_on(client_id, known)

    def taken_over(self, client_id: str) -> None:
        """A connection of this id has lost its session to another one."""
        now_ms = self._now_ms()
        self._fights.of(client_id, now_ms).charge(1, now_ms)

    def _go_on(self, client_id: str, known: _ClientId) -> None:
        if known.is_under_way or known.timer is not None:
            return
        opening = known.waiting
        if opening is None or opening.has_left:
            del self._ids[client_id]
            if opening is not None:
                opening.left()
            return
        wait_ms = self._wait_ms(client_id)
        if wait_ms:
            known.timer = asyncio.get_running_loop().call_later(wait_ms / 1_000, self._again, client_id, known)
            return
        known.waiting = None
        self._open(client_id, known, opening)

    def _open(self, client_id: str, known: _ClientId, opening: PendingConnect) -> None:
        known.is_under_way = True
        try:
            opening.open()
        except BaseException:
            self.answered(client_id)  # the next one is not to wait for an answer that will not come
            raise

    def _again(self, client_id: str, known: _ClientId) -> None:
        known.timer = None
        self._go_on(client_id, known)

    def _is_fought_for(self, client_id: str) -> bool:
        """Whether the next take-over is one too many."""
        bucket = self._fights.known(client_id)
        return bucket is not None and bucket.level(self._now_ms()) < 1

    def _wait_ms(self, client_id: str) -> int:
        bucket = self._fights.known(client_id)
        return 0 if bucket is None else bucket.debt_ms(self._now_ms())

    def _now_ms(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000
