"""All shared subscriptions: the groups, the sessions subscribed to each, and how far each has come, durably.

A group is named by its whole filter, `$share/<group>/<filter>`, and lives as long as a session is subscribed to it: a
group of durable sessions keeps its place while all of them are away, one of clean sessions ends with the last. What is
acknowledged is written by `save`, so that little is repeated after a crash.

```
SHARED  key = whole filter (UTF-8)   value = msgpack [queue id, low, next, [[start, end], ...]]
```
After a restart clean sessions are unknown until their proxies reconnect, so a group without a session is kept for a
grace period. Invariant: a group with a session exists and has a record. Loop thread only.

One shared subscription: which offsets of its queue are handed out, to which member, and which are acknowledged.

    low ............... everything below is acknowledged
    low <= o < next     acknowledged (`_done`), held by a member, given back (`_returned`) or awaited (`_awaited`)
    next .............. not handed out yet

Members grant how many offsets they can take (`grant`); offsets go round the members that can take one, those given back
first and in order, then new ones. An offset is with one member at most; it is handed out again only when that member
gave it back or left. After a restart the offsets that were out are awaited: members that return claim theirs, and the
group hands nothing out before all are claimed or the wait is called off, which keeps the order and repeats little.

Invariant: [low, next) is the disjoint union of these four kinds. Pure: offsets only, no records, no clock; one owner.

What is acknowledged out of order is kept as ranges of offsets, merged where they touch.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from broker.store.errors import StoreFull
from broker.store.state import state_kinds
from broker.store.state.state_kinds import StateChange
from remoting.protocol.errors import LocalMisuse

if TYPE_CHECKING:
    from broker.store.log_store import LogStore


HELD_BYTES_MAX = 256 * 1024
"""Bytes of records out with one member above which it gets no more until some are acknowledged: what a slow member may
cost its proxy."""


class OffsetRanges:
    """Disjoint ranges [start, end) of offsets."""

    __slots__ = ("_ends", "_starts")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._starts: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        for start, end in ranges:
            self._starts[start] = end
            self._ends[end] = start

    def __len__(self) -> int:
        return len(self._starts)

    def add(self, start: int, end: int) -> None:
        """Take [start, end) in; none of it may be in yet."""
        assert start < end, (start, end)
        start = self._ends.pop(start, start)
        end = self._starts.pop(end, end)
        self._starts[start] = end
        self._ends[end] = start

    def take_from(self, low: int) -> int:
        """Drop the range that begins at `low`, if there is one; return the first offset behind it, else `low`."""
        end = self._starts.pop(low, None)
        if end is None:
            return low
        del self._ends[end]
        return end

    def offsets(self) -> int:
        """How many offsets are in."""
        return sum(end - start for start, end in self._starts.items())

    def sorted(self) -> list[tuple[int, int]]:
        """Return the ranges in rising order."""
        return sorted(self._starts.items())


class SharedOffsets:
    """Which offsets of the queue are acknowledged, handed out, given back or awaited."""

    __slots__ = ("_awaited", "_done", "_returned", "dirty", "low", "next", "refused", "skipped")

    def __init__(self, low: int, frontier: int, done: Iterable[tuple[int, int]]) -> None:
        self.low = low
        self.next = max(low, frontier)
        self._done = OffsetRanges(done)
        self._awaited: set[int] = set()
        self._returned: list[int] = []
        self.refused: dict[int, set[object]] = {}
        """Offset given back or held -> members whose clients may not see it; dropped with its acknowledgement."""
        self.dirty = False
        """Whether it differs from what was last written."""
        self.skipped = 0
        """Offsets that retention or damage took before any member had them."""
        at = self.low
        for start, end in self._done.sorted():
            self._awaited.update(range(at, start))
            at = end
        assert at <= self.next, (at, self.next)
        self._awaited.update(range(at, self.next))

    @property
    def awaiting(self) -> bool:
        """Whether members are given time to claim what they had before a restart."""
        return bool(self._awaited)

    def call_off(self) -> None:
        """Stop waiting: what no member has claimed may go to any of them."""
        awaited, self._awaited = self._awaited, set()
        self.give_back(awaited)

    def upcoming(self, end: int, count: int) -> list[int]:
        """The next offsets to hand out, at most `count`, all below the confirmed `end`."""
        if self._awaited or count <= 0:
            return []
        found = [-negative for negative in self._returned[: -count - 1 : -1]]
        if len(found) < count and end > self.next:
            found += range(self.next, min(end, self.next + count - len(found)))
        return found

    def take(self, offset: int) -> None:
        """`offset`, the first of `upcoming`, is handed out."""
        if self._returned and -self._returned[-1] == offset:
            self._returned.pop()
            return
        assert offset == self.next, (offset, self.next)
        self.next += 1
        self.dirty = True

    def give_back(self, offsets: Iterable[int]) -> None:
        """These were handed out or awaited and are to be handed out again."""
        for offset in offsets:
            insort(self._returned, -offset)

    def acknowledge(self, offset: int) -> None:
        """`offset`, which was handed out, is done."""
        self.dirty = True
        self.refused.pop(offset, None)
        if offset == self.low:
            self.low = self._done.take_from(offset + 1)
        else:
            self._done.add(offset, offset + 1)

    def skip(self, offset: int) -> None:
        """`offset`, the first of `upcoming`, cannot be read any more."""
        self.take(offset)
        self.acknowledge(offset)
        self.skipped += 1

    def expire(self, begin: int) -> int:
        """Skip what is below `begin`, the oldest offset that is kept; how many offsets no member had were lost."""
        before = self.skipped
        while self._returned and -self._returned[-1] < begin:
            self.skip(-self._returned[-1])
        if self.next < begin:
            self.skipped += begin - self.next
            if self.low == self.next:
                self.low = begin
            else:
                self._done.add(self.next, begin)  # a member still has an older one
            self.next = begin
            self.dirty = True
        return self.skipped - before

    def claim(self, offset: int, end: int) -> bool:
        """After a restart: take `offset`, below `end`, for one member; False when it is not to be had."""
        if offset in self._awaited:
            self._awaited.discard(offset)
            return True
        at = bisect_left(self._returned, -offset)
        if at < len(self._returned) and self._returned[at] == -offset:
            del self._returned[at]
            return True
        if not self.next <= offset < end:
            return False
        # It was handed out after the last record was written, and so was everything before it.
        self._awaited.update(range(self.next, offset))
        self.next = offset + 1
        self.dirty = True
        return True

    def pass_over(self, offset: int, end: int) -> None:
        """After a restart: `offset`, below `end`, is a session's own and goes to no member of this group."""
        if self.claim(offset, end):
            self.acknowledge(offset)

    def unfinished(self, begin: int, end: int) -> int:
        """Messages kept, from `begin` on, below the confirmed `end`, that no member has acknowledged."""
        if begin <= self.low:
            return max(0, end - self.low - self._done.offsets())
        done = sum(above - max(start, begin) for start, above in self._done.sorted() if above > begin)
        return max(0, end - begin - done)

    def ranges(self) -> list[tuple[int, int]]:
        """What is acknowledged at or above `low`, as rising ranges."""
        return self._done.sorted()


class ShareMember:
    """One subscriber of the group, as long as it is connected."""

    __slots__ = ("credit", "held", "held_bytes", "leaving", "owner", "ready", "sent", "suspended")

    def __init__(self, owner: object) -> None:
        self.owner = owner
        """An object of the caller; the group does not use it."""
        self.credit = 0
        """How many more it can take."""
        self.held: dict[int, int] = {}
        """Offset -> bytes of its record, in the order handed out."""
        self.held_bytes = 0
        self.sent: set[int] = set()
        """Of those held, the ones no other member may get: sent with QoS 2 to a session that ends with its client."""
        self.leaving = False
        """It unsubscribed: it gets nothing new, but may still acknowledge what it has."""
        self.suspended = False
        """It gets nothing new for now, whatever its credit."""
        self.ready = False
        """Whether it is in the group's ring."""

    @property
    def can_take(self) -> bool:
        """Whether it may be handed one more."""
        return self.credit > 0 and not self.leaving and not self.suspended and self.held_bytes < HELD_BYTES_MAX

    def release(self, offset: int) -> bool:
        """It has this offset no longer; False when it did not have it."""
        size = self.held.pop(offset, None)
        if size is None:
            return False
        self.held_bytes -= size
        self.sent.discard(offset)
        return True


class SharedGroup:
    """The members of one group, and whose turn it is to get an offset of its queue."""

    __slots__ = ("_members", "_ring", "offsets", "queue_id")

    def __init__(self, queue_id: int, low: int, frontier: int = 0, done: Iterable[tuple[int, int]] = ()) -> None:
        """A group that begins at `low`; after a restart with how far it had come and what was acknowledged above it."""
        self.queue_id = queue_id
        self.offsets = SharedOffsets(low, frontier, done)
        self._members: dict[ShareMember, None] = {}
        self._ring: deque[ShareMember] = deque()

    @property
    def members(self) -> list[ShareMember]:
        """Those that are connected."""
        return list(self._members)

    def join(self, owner: object, held: Iterable[int] = (), end: int = 0) -> ShareMember:
        """A member connects; it gets back those of the offsets `held` below `end` that no other member has."""
        member = ShareMember(owner)
        self._members[member] = None
        for offset in held:
            if self.offsets.claim(offset, end):
                member.held[offset] = 0
        return member

    def leave(self, member: ShareMember) -> int:
        """Remove a member: what it has not acknowledged goes to others, except `ShareMember.sent`, which is lost.

        Returns the number of offsets lost.
        """
        if self._members.pop(member, False) is False:
            return 0
        lost = [offset for offset in member.held if offset in member.sent]
        for offset in lost:
            self.offsets.acknowledge(offset)
            del member.held[offset]
        self.offsets.give_back(member.held)
        member.held.clear()
        member.sent.clear()
        self._close(member)
        return len(lost)

    def retire(self, member: ShareMember) -> None:
        """A member unsubscribed: it gets nothing new and keeps what it has until that is settled."""
        self._close(member)
        if not member.held:
            self._members.pop(member, None)

    def grant(self, member: ShareMember, credit: int) -> None:
        """The member can take `credit` more (or, negative, fewer)."""
        member.credit = max(0, member.credit + credit)
        self._enter(member)

    def suspend(self, member: ShareMember, suspended: bool) -> None:
        """Stop handing offsets to the member, or resume."""
        member.suspended = suspended
        self._enter(member)

    def capacity(self, limit: int) -> int:
        """How many offsets the members can take now, counted up to `limit`."""
        found = 0
        for member in () if self.offsets.awaiting else self._ring:
            if member.can_take:
                found += member.credit
                if found >= limit:
                    return limit
        return found

    def all_refused(self, offset: int) -> bool:
        """Whether every member that is there has refused `offset`."""
        refused = self.offsets.refused.get(offset)
        return refused is not None and all(member in refused for member in self._members if not member.leaving)

    def hand_out(self, offset: int, size: int) -> ShareMember | None:
        """Give `offset`, the first of `upcoming`, to the member whose turn it is; None when no member can take it.

        An offset that was refused waits for a member that has not refused it; those behind it wait too.
        """
        member = self._next_for(self.offsets.refused.get(offset, ()))
        if member is None:
            return None
        self.offsets.take(offset)
        member.credit -= 1
        member.held[offset] = size
        member.held_bytes += size
        self._enter(member)
        return member

    def settle(
        self,
        member: ShareMember,
        done: Iterable[int],
        back: Iterable[int],
        sent: Iterable[int] = (),
        refused: Iterable[int] = (),
    ) -> None:
        """Take what a member reports about its offsets; those it does not have are ignored.

        Its client has `done`, `back` could not be delivered, `sent` may go to no other member, `refused` its client may
        not see.
        """
        held = member.held
        back = list(back)
        for offset in refused:
            if offset in held:
                self.offsets.refused.setdefault(offset, set()).add(member)
                back.append(offset)
        member.sent.update(offset for offset in sent if offset in held)
        for offset in done:
            if member.release(offset):
                self.offsets.acknowledge(offset)
        self.offsets.give_back([offset for offset in back if member.release(offset)])
        self._enter(member)
        if member.leaving and not held:
            self._members.pop(member, None)

    def _enter(self, member: ShareMember) -> None:
        """Put the member into the ring if it can take something; one that cannot is left out when its turn comes."""
        if not member.ready and member.can_take:
            member.ready = True
            self._ring.append(member)

    def _close(self, member: ShareMember) -> None:
        member.leaving = True
        if member.ready:
            self._ring.remove(member)
            member.ready = False

    def _next_for(self, refused: Container[object]) -> ShareMember | None:
        """The member whose turn it is and that is none of these; they keep their places."""
        ring, passed = self._ring, []
        found = None
        while ring and found is None:
            member = ring.popleft()
            if not member.can_take:
                member.ready = False
            elif member in refused:
                passed.append(member)
            else:
                member.ready = False
                found = member
        ring.extendleft(reversed(passed))
        return found


RANGES_MAX = 16_384
"""Ranges of acknowledged offsets in one record; what lies above them is handed out again after a restart."""

Listener = Callable[[str, str], None]
"""Called with the whole filter and the client id when a session gives a shared subscription up."""


class GroupBacklog(NamedTuple):
    """How far a group is behind in its queue."""

    messages: int
    """That can be read and no member has acknowledged, those that members have in hand included."""
    offset: int
    """The oldest of them, or `end`."""
    begin: int
    """The oldest message kept."""
    end: int
    """Behind the newest confirmed message."""


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

    def behind(self, group: SharedGroup) -> GroupBacklog:
        """How far a group is behind; nothing where its queue was deleted."""
        try:
            begin, end = self._store.reading.bounds(group.queue_id)
        except LocalMisuse:
            return GroupBacklog(0, 0, 0, 0)
        offset = min(end, max(begin, group.offsets.low))
        return GroupBacklog(group.offsets.unfinished(begin, end), offset, begin, end)

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
