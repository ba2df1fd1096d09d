"""Requests that wait until queues grow: woken by the confirm position, ended exactly at their deadline.

A waiter names its queues and a function that tries to answer and returns True when it has. The function is called when
one of the queues has grown and, with `last=True`, at the deadline. Invariant: a waiter answers exactly once, or never
when its connection has closed; at most `waiters_max` wait, the next one is ended at once. Loop thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from remoting.transport.contracts import Peer

Attempt = Callable[[bool], bool]
"""Called with last=False when a queue has grown, last=True at the deadline; True means answered."""
ANY_QUEUE = -1
"""Stands for every queue; for a request whose queue does not exist yet."""
_WAITERS_ATTRIBUTE = "long polls"


@dataclass(slots=True, eq=False)
class _Waiter:
    attempt: Attempt
    queue_ids: tuple[int, ...]
    peer_waiters: set[_Waiter]
    timer: asyncio.TimerHandle | None = field(default=None)


class LongPolls:
    """All waiting requests of this broker."""

    def __init__(self, *, waiters_max: int, wait_ms_max: int, may_answer: Callable[[], bool] = lambda: True) -> None:
        """`may_answer`: whether this broker's state is current; while it is not, no wait ends empty."""
        self._may_answer = may_answer
        self._waiters_max = waiters_max
        self._wait_ms_max = wait_ms_max
        self._by_queue: dict[int, set[_Waiter]] = {}
        self.waiters: set[_Waiter] = set()
        """Always the same set; while it is empty `advanced` need not be called."""
        self.overflowed = 0

    def __len__(self) -> int:
        return len(self.waiters)

    def wait(self, peer: Peer, queue_ids: Iterable[int], wait_ms: int, attempt: Attempt) -> None:
        """Try again when one of the queues grows, and for the last time after `wait_ms`."""
        if wait_ms <= 0 or len(self.waiters) >= self._waiters_max:
            self.overflowed += wait_ms > 0
            attempt(True)
            return
        waiter = _Waiter(attempt, tuple(queue_ids), self._waiters_of(peer))
        waiter.peer_waiters.add(waiter)
        self.waiters.add(waiter)
        for queue_id in waiter.queue_ids:
            self._by_queue.setdefault(queue_id, set()).add(waiter)
        delay_s = min(wait_ms, self._wait_ms_max) / 1_000
        waiter.timer = asyncio.get_running_loop().call_later(delay_s, self._deadline, waiter)

    def advanced(self, queue_ids: Sequence[int]) -> None:
        """Queues have grown: every waiter for one of them tries again."""
        by_queue = self._by_queue
        woken: dict[_Waiter, None] = {}
        for queue_id in (*queue_ids, ANY_QUEUE):
            if queue_id in by_queue:
                woken.update(dict.fromkeys(by_queue[queue_id]))
        self._try(woken)

    def wake_all(self) -> None:
        """Something else changed (a topic was created): every waiter tries again."""
        self._try(dict.fromkeys(self.waiters))

    def _try(self, waiters: Iterable[_Waiter]) -> None:
        for waiter in list(waiters):
            if waiter in self.waiters and waiter.attempt(False):
                self._remove(waiter)

    def _deadline(self, waiter: _Waiter) -> None:
        self._remove(waiter)
        if self._may_answer():
            waiter.attempt(True)

    def _remove(self, waiter: _Waiter) -> None:
        if waiter.timer is not None:
            waiter.timer.cancel()
        self.waiters.discard(waiter)
        waiter.peer_waiters.discard(waiter)
        for queue_id in waiter.queue_ids:
            waiting = self._by_queue.get(queue_id)
            if waiting is not None:
                waiting.discard(waiter)
                if not waiting:
                    del self._by_queue[queue_id]

    def _remove_all(self, waiters: set[_Waiter]) -> None:
        for waiter in list(waiters):
            self._remove(waiter)

    def _waiters_of(self, peer: Peer) -> set[_Waiter]:
        found = peer.attributes.get(_WAITERS_ATTRIBUTE)
        if isinstance(found, set):
            return found
        made: set[_Waiter] = set()
        peer.attributes[_WAITERS_ATTRIBUTE] = made
        peer.on_close(lambda _reason: self._remove_all(made))
        return made
