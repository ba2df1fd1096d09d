"""All shared subscriptions: the groups, the sessions subscribed to each, and how far each has come, durably.

A group is named by its whole filter, `$share/<group>/<filter>`, and lives as long as a session is subscribed to it: a
group of durable sessions keeps its place while all of them are away, one of clean sessions ends with the last. What is
acknowledged is written by `save`, so that little is repeated after a crash.

```
SHARED  key = whole filter (UTF-8)   value = msgpack [queue id, low, next, [[start, end], ...]]
```
After a restart clean sessions are unknown until their proxies reconnect, so a group without a session is kept for a
grace period. Invariant: a group with a session exists and has a record. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from broker.shared.group import SharedGroup
from broker.store.errors import StoreFull
from broker.store.state import state_kinds
from broker.store.state.state_kinds import StateChange
from remoting.protocol.errors import LocalMisuse

if TYPE_CHECKING:
    from broker.store.log_store import LogStore

RANGES_MAX = 16_384
"""Ranges of acknowledged offsets in one record; what lies above them is handed out again after a restart."""

Listener = Callable[[str, str], None]
"""Called with the whole filter and the client id when a session gives a shared subscription up."""


class SharedRecord(msgspec.Struct, array_like=True):
    """How far a group has come."""

    queue_id: int
    low: int
    next: int
    done: list[tuple[int, int]]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(SharedRecord).decode


class SharedGroups:
    """Whole filter -> group, with the sessions subscribed to it."""

    def __init__(self, store: LogStore, *, grace_ms: int = 30_000, now_ms: int = 0) -> None:
        self._store = store
        self._grace_ms = grace_ms
        self._groups: dict[str, SharedGroup] = {}
        self.queues: dict[int, dict[str, SharedGroup]] = {}
        """Shared queue -> its groups by name; always the same dictionary."""
        self._holders: dict[str, set[str]] = {}
        self._idle_since_ms: dict[str, int] = {}
        self._listeners: list[Listener] = []
        self.not_saved = 0
        for key, (value, _position) in list(store.state.items(state_kinds.SHARED)):
            name, record = bytes(key).decode(), _decode(value)
            self._add(name, SharedGroup(record.queue_id, record.low, record.next, record.done))
            self._idle_since_ms[name] = now_ms

    def __len__(self) -> int:
        return len(self._groups)

    def get(self, name: str) -> SharedGroup | None:
        """The group of a whole filter, or None."""
        return self._groups.get(name)

    def items(self) -> list[tuple[str, SharedGroup]]:
        """All groups by name."""
        return list(self._groups.items())

    def of_queue(self, queue_id: int) -> Iterable[SharedGroup]:
        """The groups that share one queue."""
        return self.queues.get(queue_id, {}).values()

    def holders(self, name: str) -> int:
        """How many sessions are subscribed to the group."""
        return len(self._holders.get(name, ()))

    def on_release(self, listener: Listener) -> None:
        """Call `listener` for every shared subscription given up, before its group may end."""
        self._listeners.append(listener)

    def join(self, name: str, client_id: str, queue_id: int) -> SharedGroup:
        """A session subscribes; a group that is new begins with the queue's next message."""
        group = self._groups.get(name)
        if group is not None and group.queue_id != queue_id:  # its queue expired while no session was subscribed
            self._end(name)
            group = None
        if group is None:
            group = SharedGroup(queue_id, self._store.reading.next_offset(queue_id))
            self._store.append_state([self._change(name, group)])
            self._add(name, group)
        self._holders.setdefault(name, set()).add(client_id)
        self._idle_since_ms.pop(name, None)
        return group

    def release(self, name: str, client_id: str) -> None:
        """A session has given its subscription up; with the last one the group ends."""
        for listener in self._listeners:
            listener(name, client_id)
        holders = self._holders.get(name, set())
        holders.discard(client_id)
        if not holders:
            self._end(name)

    def pass_noted(self, places: Iterable[tuple[int, int]], own: Container[str]) -> None:
        """After a start: what a session has noted, as (queue id, offset), is not handed out again.

        Of several groups on one queue it is the one among the session's `own` subscriptions; if several are, it is
        unknown which, and the message goes to another member as one of QoS 1 would.
        """
        for queue_id, offset in places:
            named = self.queues.get(queue_id, {})
            found = list(named.values())
            if len(found) > 1:
                found = [group for name, group in named.items() if name in own]
            if len(found) == 1:
                found[0].offsets.pass_over(offset, self._end_of(queue_id))

    def save(self) -> bool:
        """Write the groups that moved; False when the disk is full (what was not written is repeated after a crash)."""
        moved = [(name, group) for name, group in self._groups.items() if group.offsets.dirty]
        if moved:
            try:
                self._store.append_state([self._change(name, group) for name, group in moved])
            except StoreFull:
                self.not_saved += 1
                return False
            for _name, group in moved:
                group.offsets.dirty = False
        return True

    def expire(self, now_ms: int) -> int:
        """End the groups that no session returned to after a restart; returns how many."""
        due = [name for name, since in self._idle_since_ms.items() if now_ms - since >= self._grace_ms]
        for name in due:
            self._end(name)
        return len(due)

    def _end_of(self, queue_id: int) -> int:
        try:
            return self._store.reading.next_offset(queue_id)
        except LocalMisuse:
            return 0  # deleted meanwhile

    def _add(self, name: str, group: SharedGroup) -> None:
        self._groups[name] = group
        self.queues.setdefault(group.queue_id, {})[name] = group

    def _end(self, name: str) -> None:
        group = self._groups.pop(name, None)
        self._holders.pop(name, None)
        self._idle_since_ms.pop(name, None)
        if group is None:
            return
        same = self.queues[group.queue_id]
        del same[name]
        if not same:
            del self.queues[group.queue_id]
        with suppress(StoreFull):  # even deletions are refused when a full disk has no reserve left
            self._store.append_state([StateChange(state_kinds.SHARED, name.encode(), None)])

    @staticmethod
    def _change(name: str, group: SharedGroup) -> StateChange:
        offsets = group.offsets
        record = SharedRecord(group.queue_id, offsets.low, offsets.next, offsets.ranges()[:RANGES_MAX])
        return StateChange(state_kinds.SHARED, name.encode(), _encode(record))
