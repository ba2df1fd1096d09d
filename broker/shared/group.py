"""One shared subscription's place in its queue: what was handed out, to whom, and what came back.

    low ............... everything below is acknowledged
    low <= o < next     acknowledged (`_done`), held by a member, given back (`_returned`) or awaited (`_awaited`)
    next .............. never handed out yet

Members say how much they can take (`grant`); offsets go round the members that can take one, those given back first and
in order, then new ones. Every offset is with one member at most; it is handed out again only when that member gave it
back or left. After a restart the offsets that were out are awaited: members that come back claim theirs, and the group
hands nothing out before all are claimed or the wait is called off, so that order holds and little is repeated.

Invariant: [low, next) is the disjoint union of these four kinds. Pure: offsets only, no records, no clock; one
owner.

What is acknowledged out of order is kept as ranges of offsets, merged where they touch.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Container, Iterable

HELD_BYTES_MAX = 256 * 1024
"""Bytes of records out with one member above which it is handed no further one until some are acknowledged: what a slow
member holds in its proxy."""


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


class ShareMember:
    """One subscriber of the group, as long as its connection lives."""

    __slots__ = ("credit", "held", "held_bytes", "leaving", "owner", "ready", "sent", "suspended")

    def __init__(self, owner: object) -> None:
        self.owner = owner
        """Whoever it belongs to; the group does not look at it."""
        self.credit = 0
        """How many more it said it can take."""
        self.held: dict[int, int] = {}
        """Offset -> bytes of its record, in the order handed out."""
        self.held_bytes = 0
        self.sent: set[int] = set()
        """Of those held, the ones nobody else may get: sent with QoS 2 to a session that ends with its connection."""
        self.leaving = False
        """It unsubscribed: nothing new, but what it has may still be acknowledged."""
        self.suspended = False
        """Nothing new for now, although it has said that it can take it."""
        self.ready = False
        """Whether it stands in the group's ring."""


class SharedGroup:
    """Offsets of one queue among the members of one group."""

    __slots__ = (
        "_awaited",
        "_done",
        "_members",
        "_refused",
        "_returned",
        "_ring",
        "dirty",
        "low",
        "next",
        "queue_id",
        "skipped",
    )

    def __init__(self, queue_id: int, low: int, frontier: int = 0, done: Iterable[tuple[int, int]] = ()) -> None:
        """A group that begins at `low`; after a restart with how far it had come and what was acknowledged above it."""
        self.queue_id = queue_id
        self.low = low
        self.next = max(low, frontier)
        self._done = OffsetRanges(done)
        self._awaited: set[int] = set()
        self._returned: list[int] = []
        self._refused: dict[int, set[ShareMember]] = {}
        """Offset given back or held -> members whose clients may not see it."""
        self._members: dict[ShareMember, None] = {}
        self._ring: deque[ShareMember] = deque()
        self.dirty = False
        """Whether it differs from what was last written."""
        self.skipped = 0
        """Offsets that retention or damage took before anybody had them."""
        at = self.low
        for start, end in self._done.sorted():
            self._awaited.update(range(at, start))
            at = end
        assert at <= self.next, (at, self.next)
        self._awaited.update(range(at, self.next))

    # ---- members

    @property
    def members(self) -> list[ShareMember]:
        """Those who are connected."""
        return list(self._members)

    def join(self, owner: object, held: Iterable[int] = (), end: int = 0) -> ShareMember:
        """A member connects; of the offsets it says it holds, those below `end` that nobody else has are its again."""
        member = ShareMember(owner)
        self._members[member] = None
        for offset in held:
            if self._claim(offset, end):
                member.held[offset] = 0
        return member

    def leave(self, member: ShareMember) -> int:
        """A member is gone: what it has not acknowledged goes to others, or (`Member.sent`) to nobody; how many of
        these.
        """
        if self._members.pop(member, False) is False:
            return 0
        lost = [offset for offset in member.held if offset in member.sent]
        for offset in lost:
            self._acknowledge(offset)
            del member.held[offset]
        self._give_back(member.held)
        member.held.clear()
        member.sent.clear()
        member.leaving = True
        if member.ready:
            self._ring.remove(member)
            member.ready = False
        return len(lost)

    def retire(self, member: ShareMember) -> None:
        """A member unsubscribed: nothing new for it; what it has is still its own."""
        member.leaving = True
        if member.ready:
            self._ring.remove(member)
            member.ready = False
        if not member.held:
            self._members.pop(member, None)

    def grant(self, member: ShareMember, credit: int) -> None:
        """The member can take `credit` more (or, negative, fewer)."""
        member.credit = max(0, member.credit + credit)
        self._enter(member)

    def suspend(self, member: ShareMember, suspended: bool) -> None:
        """Hand the member nothing for now, or go on."""
        member.suspended = suspended
        self._enter(member)

    def _enter(self, member: ShareMember) -> None:
        """Put the member into the ring if it can take something; whoever cannot is left out when its turn comes."""
        if not member.ready and self._can_take(member):
            member.ready = True
            self._ring.append(member)

    @staticmethod
    def _can_take(member: ShareMember) -> bool:
        return member.credit > 0 and not member.leaving and not member.suspended and member.held_bytes < HELD_BYTES_MAX

    # ---- handing out

    @property
    def awaiting(self) -> bool:
        """Whether members are given time to claim what they had before a restart."""
        return bool(self._awaited)

    def capacity(self, limit: int) -> int:
        """How many offsets the members can take now, counted up to `limit`."""
        found = 0
        for member in () if self._awaited else self._ring:
            if self._can_take(member):
                found += member.credit
                if found >= limit:
                    return limit
        return found

    def call_off(self) -> None:
        """Wait no longer: what nobody claimed goes to anybody."""
        awaited, self._awaited = self._awaited, set()
        self._give_back(awaited)

    def upcoming(self, end: int, count: int) -> list[int]:
        """The next offsets to hand out, at most `count`, all below the confirmed `end`."""
        if self._awaited or count <= 0:
            return []
        found = [-negative for negative in self._returned[: -count - 1 : -1]]
        if len(found) < count and end > self.next:
            found += range(self.next, min(end, self.next + count - len(found)))
        return found

    def nobody_may(self, offset: int) -> bool:
        """Whether every member there is has refused `offset`."""
        refused = self._refused.get(offset)
        return refused is not None and all(member in refused for member in self._members if not member.leaving)

    def hand_out(self, offset: int, size: int) -> ShareMember | None:
        """Give `offset`, the first of `upcoming`, to the member whose turn it is; None when nobody can take it.

        One that was refused waits for a member that has not refused it, and with it whatever is behind it.
        """
        member = self._next_for(self._refused.get(offset, ()))
        if member is None:
            return None
        self._take(offset)
        member.credit -= 1
        member.held[offset] = size
        member.held_bytes += size
        self._enter(member)
        return member

    def _next_for(self, refused: Container[ShareMember]) -> ShareMember | None:
        """The member whose turn it is and who is none of these; they keep their places."""
        ring, passed = self._ring, []
        found = None
        while ring and found is None:
            member = ring.popleft()
            if not self._can_take(member):
                member.ready = False
            elif member in refused:
                passed.append(member)
            else:
                member.ready = False
                found = member
        ring.extendleft(reversed(passed))
        return found

    def skip(self, offset: int) -> None:
        """`offset`, the first of `upcoming`, cannot be read any more."""
        self._take(offset)
        self._acknowledge(offset)
        self.skipped += 1

    def expire(self, begin: int) -> int:
        """Nothing below `begin` is kept any more; how many offsets nobody had were lost by that."""
        before = self.skipped
        while self._returned and -self._returned[-1] < begin:
            self.skip(-self._returned[-1])
        if self.next < begin:
            self.skipped += begin - self.next
            if self.low == self.next:
                self.low = begin
            else:
                self._done.add(self.next, begin)  # somebody still holds an older one
            self.next = begin
            self.dirty = True
        return self.skipped - before

    def pass_over(self, offset: int, end: int) -> None:
        """After a restart: `offset`, below `end`, is a session's own and not for anybody here."""
        if self._claim(offset, end):
            self._acknowledge(offset)

    def _take(self, offset: int) -> None:
        if self._returned and -self._returned[-1] == offset:
            self._returned.pop()
            return
        assert offset == self.next, (offset, self.next)
        self.next += 1
        self.dirty = True

    # ---- coming back

    def settle(
        self,
        member: ShareMember,
        done: Iterable[int],
        back: Iterable[int],
        sent: Iterable[int] = (),
        refused: Iterable[int] = (),
    ) -> None:
        """The member's client has `done`; `back` could not be delivered; `sent` is for nobody else; `refused` it may
        not see. What it does not hold is not its to settle.
        """
        held = member.held
        back = list(back)
        for offset in refused:
            if offset in held:
                self._refused.setdefault(offset, set()).add(member)
                back.append(offset)
        member.sent.update(offset for offset in sent if offset in held)
        for offset in done:
            size = held.pop(offset, None)
            if size is not None:
                member.held_bytes -= size
                member.sent.discard(offset)
                self._acknowledge(offset)
        returned = [offset for offset in back if offset in held]
        for offset in returned:
            member.held_bytes -= held.pop(offset)
            member.sent.discard(offset)
        self._give_back(returned)
        self._enter(member)
        if member.leaving and not held:
            self._members.pop(member, None)

    def _give_back(self, offsets: Iterable[int]) -> None:
        for offset in offsets:
            insort(self._returned, -offset)

    def _acknowledge(self, offset: int) -> None:
        self.dirty = True
        self._refused.pop(offset, None)
        if offset == self.low:
            self.low = self._done.take_from(offset + 1)
        else:
            self._done.add(offset, offset + 1)

    def _claim(self, offset: int, end: int) -> bool:
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

    # ---- what is written

    def ranges(self) -> list[tuple[int, int]]:
        """What is acknowledged at or above `low`, as rising ranges."""
        return self._done.sorted()
