"""One shared subscription: which offsets of its queue are handed out, to which member, and which are acknowledged.

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
from collections.abc import Container, Iterable

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
