"""Ends light queues that nobody uses any more: all their messages have expired, and nobody reads them.

A light queue is looked at in turn with all others. Where the log has no message of it, it is looked at again after
`expiry_ms`; if no message came meanwhile and it is not in use, it is deleted: by one record, with the offsets that
consumer groups have there. The name is free then: its next message begins a new queue, with a new id, at offset 0.

In use is a queue with a subscription, one whose last subscription ended less than `expiry_ms` ago (a proxy needs that
to come back), one that a proxy follows or a request waits for, one of a retained message, of a wildcard filter, of a
shared subscription, and every lite topic, whose parent says when it ends. A queue where a consumer group has committed
an offset is kept for `offset_expiry_ms` longer. All times begin again with each start of the broker.

Invariants: what is not confirmed yet counts as a message, so a queue is only deleted on what is confirmed to have
expired; nothing that was placed and not appended refers to a queue when one is deleted. A step does a bounded part.
Loop thread only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.store.state.state_kinds import GROUP_OFFSET, StateChange
from remoting.protocol.records import names

if TYPE_CHECKING:
    from broker.store.log_store import LogStore

LOOKED_AT = 2_048
"""Queue ids looked at in one step: a part of them in which there are queues."""
ENDED_PER_STEP_MAX, EXAMINED_PER_STEP_MAX = 500, 2_000
SWEEPS_PER_EXPIRY = 4
"""All queues are looked at so many times within `expiry_ms`, or as often as steps of this size allow."""
SWEEP_INTERVAL_MS_MIN = 1_000
_LIGHT = b"\x00" + names.LMQ_PREFIX
Waiting = tuple[int, int, list[tuple[int, int]]]
"""When to look again, the first id of the part, (queue id, next offset) of the empty light queues in it."""


class GroupCursors:
    """Which consumer groups have committed offsets at light queues."""

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self._keys: dict[bytes, set[bytes]] = {}
        """Light queue -> keys of the offsets there; none without."""
        for key, (value, position) in store.state.items(GROUP_OFFSET):
            self._changed(bytes(key), value, position)
        store.state.subscribe(GROUP_OFFSET, self._changed)

    def at(self, name: bytes) -> list[bytes]:
        """Return the keys of the offsets at a light queue."""
        return sorted(self._keys.get(name, ()))

    def _changed(self, key: bytes, value: bytes | None, _position: int) -> None:
        if _LIGHT not in key:
            return
        name = key.split(b"\x00")[1]
        if value is not None:
            self._keys.setdefault(name, set()).add(key)
        elif name in self._keys:
            self._keys[name].discard(key)
            if not self._keys[name]:
                del self._keys[name]


class UnusedQueues:
    """Finds light queues without messages and ends them."""

    def __init__(
        self,
        store: LogStore,
        *,
        in_use: Callable[[int, bytes], bool],
        expiry_ms: int,
        offset_expiry_ms: int,
        now_ms: int,
    ) -> None:
        """`in_use(queue id, name)`; an `expiry_ms` of 0 keeps all queues."""
        self._store = store
        self._in_use = in_use
        self._cursors = GroupCursors(store)
        self.expiry_ms = expiry_ms
        self.offset_expiry_ms = offset_expiry_ms
        self._at = 0
        self._sweep_ms = now_ms
        """When the present sweep began, or when the next one begins."""
        self._waiting: deque[Waiting] = deque()
        self._parts: set[int] = set()
        """First ids of the parts that wait."""
        self._left_ms: dict[int, int] = {}
        """Queue -> when its last subscription ended, the oldest first."""
        self._held_ms: dict[int, int] = {}
        """Queue that only an offset keeps -> since when."""

    def left(self, queue: int, now_ms: int) -> None:
        """The last subscription of a queue has ended."""
        self._left_ms.pop(queue, None)
        self._left_ms[queue] = now_ms

    def step(self, now_ms: int) -> int:
        """Look at some queues and end some; returns how many. Raises StoreError: none of these has ended."""
        if not self.expiry_ms:
            return 0
        self._examine(now_ms)
        while self._left_ms and now_ms - next(iter(self._left_ms.values())) >= self.expiry_ms:
            del self._left_ms[next(iter(self._left_ms))]
        return self._end_due(now_ms)

    @property
    def working(self) -> bool:
        """Whether there is more to do at once."""
        return self._at > 0

    def due(self, now_ms: int) -> bool:
        """Whether the next step looks at queues or may end some."""
        return bool(self.expiry_ms) and (now_ms >= self._sweep_ms or self._is_due(now_ms))

    def _is_due(self, now_ms: int) -> bool:
        return bool(self._waiting) and self._waiting[0][0] <= now_ms

    def _examine(self, now_ms: int) -> None:
        """Look at the next part of all queues; one that waits to be looked at again is passed over."""
        if now_ms < self._sweep_ms:
            return
        first = self._store.queues.part(LOOKED_AT, self._at)
        if first is not None:
            self._at = first + LOOKED_AT
            self._find_empty(first, now_ms)
        if first is None or self._store.queues.part(LOOKED_AT, self._at) is None:
            self._at = 0
            self._sweep_ms = now_ms + max(self.expiry_ms // SWEEPS_PER_EXPIRY, SWEEP_INTERVAL_MS_MIN)

    def _find_empty(self, first: int, now_ms: int) -> None:
        if first not in self._parts:
            name = self._store.state.queues.name
            empty = self._store.queues.empty(first, self._at)
            found = [one for one in empty if (name(one[0]) or b"").startswith(names.LMQ_PREFIX)]
            if found:
                self._waiting.append((now_ms + self.expiry_ms, first, found))
                self._parts.add(first)

    def _end_due(self, now_ms: int) -> int:
        ended: list[int] = []
        changes: list[StateChange] = []
        left = EXAMINED_PER_STEP_MAX
        while self._is_due(now_ms) and left > 0 and len(ended) < ENDED_PER_STEP_MAX:
            _due_ms, first, queues = self._waiting[0]
            while queues and left > 0 and len(ended) < ENDED_PER_STEP_MAX:
                left -= 1
                queue, next_offset = queues.pop()
                offsets = self._offsets_to_end(queue, next_offset, now_ms)
                if offsets is not None:
                    ended.append(queue)
                    changes += [StateChange(GROUP_OFFSET, key, None) for key in offsets]
            if not queues:
                self._waiting.popleft()
                self._parts.discard(first)
        if ended:
            self._store.queues.delete(ended, changes)
            for queue in ended:
                self._held_ms.pop(queue, None)
        return len(ended)

    def _offsets_to_end(self, queue: int, next_offset: int, now_ms: int) -> list[bytes] | None:
        """The keys of the offsets that end with a queue; None if it stays."""
        if not self._store.queues.is_empty(queue, next_offset):
            self._held_ms.pop(queue, None)
            return None
        name = self._store.queues.name(queue)
        if queue in self._left_ms or self._in_use(queue, name):
            return None
        offsets = self._cursors.at(name)
        if offsets and now_ms - self._held_ms.setdefault(queue, now_ms) < self.offset_expiry_ms:
            return None
        return offsets
