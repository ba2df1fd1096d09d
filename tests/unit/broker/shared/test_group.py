"""Offsets of one shared subscription among its members, and ranges of offsets."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker.shared.groups import HELD_BYTES_MAX, OffsetRanges, SharedGroup, SharedOffsets, ShareMember
from tests.support.plants import Plant, catches


def numbers(ranges: list[tuple[int, int]]) -> list[int]:
    return [number for start, end in ranges for number in range(start, end)]


@given(st.lists(st.integers(0, 40), unique=True))
def test_ranges_hold_what_was_added_and_never_touch(offsets: list[int]) -> None:
    """In any order, the ranges are the set; neighbours are one range."""
    ranges = OffsetRanges()
    for offset in offsets:
        ranges.add(offset, offset + 1)
    found = ranges.sorted()
    assert numbers(found) == sorted(offsets)
    assert all(end < start for (_, end), (start, _) in pairwise(found))
    assert len(ranges) == len(found)
    again = OffsetRanges(found)
    assert again.sorted() == found


@given(st.lists(st.integers(0, 40), unique=True), st.integers(0, 45), st.integers(0, 45))
def test_unfinished_is_what_is_kept_and_not_acknowledged(acknowledged: list[int], begin: int, end: int) -> None:
    """Also where retention has passed the oldest of them."""
    offsets = SharedOffsets(0, 41, ())
    for offset in acknowledged:
        offsets.acknowledge(offset)
    end = max(end, 41)
    assert offsets.unfinished(begin, end) == len({*range(begin, end)} - {*acknowledged})


def test_taking_the_front_returns_where_it_ends() -> None:
    """Only a range that begins there is dropped."""
    ranges = OffsetRanges([(3, 5), (7, 9)])
    assert ranges.take_from(2) == 2
    assert ranges.take_from(3) == 5
    assert ranges.take_from(7) == 9
    assert len(ranges) == 0
    ranges.add(4, 5)
    ranges.add(5, 6)
    assert ranges.sorted() == [(4, 6)]
    ranges.add(6, 9)
    assert ranges.sorted() == [(4, 9)]


def distribute(group: SharedGroup, end: int, size: int = 100) -> list[tuple[object, int]]:
    """Distribute all that can be; returns (owner, offset) in order."""
    given: list[tuple[object, int]] = []
    while offsets := group.offsets.upcoming(end, group.capacity(7)):
        for offset in offsets:
            member = group.hand_out(offset, size)
            if member is None:
                return given
            given.append((member.owner, offset))
    return given


def member(group: SharedGroup, name: str, credit: int) -> ShareMember:
    joined = group.join(name)
    group.grant(joined, credit)
    return joined


def test_offsets_take_turns_among_members_with_room() -> None:
    """One without room is skipped, and what no member can take stays."""
    group = SharedGroup(7, 10)
    member(group, "a", 3)
    member(group, "b", 1)
    assert distribute(group, 20) == [("a", 10), ("b", 11), ("a", 12), ("a", 13)]
    assert (group.offsets.low, group.offsets.next) == (10, 14)
    assert distribute(group, 20) == []


def test_what_a_member_leaves_goes_to_another_first_and_in_order() -> None:
    """Nothing is lost with a member, and nothing newer overtakes it."""
    group = SharedGroup(7, 0)
    a, b = member(group, "a", 3), member(group, "b", 2)
    assert [offset for _, offset in distribute(group, 5)] == [0, 1, 2, 3, 4]
    group.settle(a, [2], [])
    group.leave(a)
    group.leave(a)  # twice has the effect of once
    group.settle(b, [1, 3], [])
    group.grant(b, 10)
    assert distribute(group, 7) == [("b", 0), ("b", 4), ("b", 5), ("b", 6)]
    assert group.offsets.low == 0
    assert group.offsets.ranges() == [(1, 4)]
    group.settle(b, [0], [])
    assert group.offsets.low == 4


def test_a_late_acknowledgement_of_a_former_member_changes_nothing() -> None:
    """What it had may be with another by then."""
    group = SharedGroup(7, 0)
    a = member(group, "a", 1)
    distribute(group, 1)
    group.leave(a)
    group.settle(a, [0], [])
    assert group.offsets.low == 0
    assert group.offsets.upcoming(1, 5) == [0]


@catches(
    Plant(
        "what-it-gave-back-was-sent", "broker.shared.groups:ShareMember.release", "self.sent.discard(offset)", "pass"
    ),
    Plant(
        "what-it-never-had-was-sent",
        "broker.shared.groups:SharedGroup.settle",
        "member.sent.update(offset for offset in sent if offset in held)",
        "member.sent.update(sent)",
    ),
    Plant(
        "sent-to-two",
        "broker.shared.groups:SharedGroup.leave",
        "lost = [offset for offset in member.held if offset in member.sent]",
        "lost = []",
    ),
)
def test_only_what_a_client_may_have_is_lost_with_it() -> None:
    """Sent by QoS 2 and not given back since: that goes to no other member, everything else does."""
    group = SharedGroup(7, 0)
    a = member(group, "a", 2)
    group.settle(a, [], [], sent=[2])
    assert distribute(group, 2) == [("a", 0), ("a", 1)]
    group.settle(a, [], [], sent=[0, 1])
    group.settle(a, [], [0])
    group.grant(a, 2)
    assert distribute(group, 3) == [("a", 0), ("a", 2)]
    assert group.leave(a) == 1
    member(group, "b", 5)
    assert distribute(group, 3) == [("b", 0), ("b", 2)]


def test_what_cannot_be_delivered_is_given_back() -> None:
    """A member whose window is taken returns what it was given."""
    group = SharedGroup(7, 0)
    a, b = member(group, "a", 2), member(group, "b", 1)
    assert distribute(group, 3) == [("a", 0), ("b", 1), ("a", 2)]
    group.settle(a, [], [2, 0, 99])
    group.grant(b, 2)
    assert distribute(group, 3) == [("b", 0), ("b", 2)]


def test_an_unsubscribed_member_gets_nothing_new_but_keeps_what_it_has() -> None:
    """[MQTT-3.10.4-3] what has been sent is completed; then the member is removed."""
    group = SharedGroup(7, 0)
    a = member(group, "a", 5)
    distribute(group, 1)
    group.retire(a)
    assert distribute(group, 3) == []
    assert group.members == [a]
    group.settle(a, [0], [])
    assert group.members == []
    assert group.offsets.low == 1
    b = member(group, "b", 5)
    group.retire(b)
    assert group.members == []


def test_a_member_gets_bytes_up_to_a_limit() -> None:
    """Large records: what one member has in flight is bounded whatever its credit."""
    group = SharedGroup(7, 0)
    a = member(group, "a", 100)
    assert distribute(group, 10, HELD_BYTES_MAX // 2) == [("a", 0), ("a", 1)]
    group.settle(a, [0], [])
    assert distribute(group, 10, HELD_BYTES_MAX // 2) == [("a", 2)]


def test_a_suspended_member_is_skipped() -> None:
    """Its connection accepts no more now; its credit stays."""
    group = SharedGroup(7, 0)
    a = member(group, "a", 2)
    group.suspend(a, True)
    assert group.capacity(9) == 0
    assert distribute(group, 5) == []
    group.suspend(a, False)
    assert distribute(group, 5) == [("a", 0), ("a", 1)]


def test_expired_and_unreadable_offsets_count_as_settled() -> None:
    """What retention removed or damage destroyed must not stop the group; it is counted."""
    group = SharedGroup(7, 0)
    a = member(group, "a", 3)
    b = member(group, "b", 1)
    distribute(group, 4)
    group.settle(a, [], [0])
    assert group.offsets.expire(8) == 5
    assert (group.offsets.low, group.offsets.next) == (1, 8)
    group.settle(a, [2, 3], [])
    group.settle(b, [1], [])
    assert group.offsets.low == 8
    assert group.offsets.expire(20) == 12
    assert (group.offsets.low, group.offsets.next) == (20, 20)
    group.offsets.skip(20)
    assert (group.offsets.low, group.offsets.skipped) == (21, 18)


def test_after_a_restart_members_claim_what_they_had_before_anything_continues() -> None:
    """Order holds, and a message unacknowledged at one client is not sent to another."""
    group = SharedGroup(7, 2, 6, [(3, 4)])  # 2, 4, 5 were in flight
    a = group.join("a", held=[2, 5], end=9)
    group.grant(a, 10)
    assert group.offsets.awaiting
    assert distribute(group, 9) == []
    b = group.join("b", held=[4, 6, 99, 3], end=9)  # 6 was given after the record was written
    group.grant(b, 10)
    assert not group.offsets.awaiting
    assert [offset for _, offset in distribute(group, 9)] == [7, 8]
    group.settle(a, [2, 5], [])
    group.settle(b, [4, 6], [])
    assert group.offsets.low == 7


def test_what_is_not_claimed_is_distributed_when_the_wait_ends() -> None:
    """A member that does not return must not hold up anything for ever."""
    group = SharedGroup(7, 0, 3)
    member(group, "a", 10)
    assert distribute(group, 5) == []
    group.offsets.call_off()
    assert [offset for _, offset in distribute(group, 5)] == [0, 1, 2, 3, 4]


def test_what_was_given_back_can_be_claimed_while_it_is_free() -> None:
    """A proxy whose connection was lost for a moment claims its clients' messages again if no member has them."""
    group = SharedGroup(7, 0)
    a = member(group, "a", 2)
    distribute(group, 2)
    group.leave(a)
    again = group.join("a", held=[1], end=2)
    assert list(again.held) == [1]
    assert group.offsets.upcoming(2, 5) == [0]
    late = group.join("c", held=[1], end=2)
    assert list(late.held) == []
    ahead = SharedGroup(7, 0)
    ahead.join("a", held=[3], end=5)
    assert ahead.offsets.awaiting
    ahead.offsets.call_off()
    assert ahead.offsets.upcoming(5, 9) == [0, 1, 2, 4]


class Model(RuleBasedStateMachine):
    """The group beside a table of the member that has each offset."""

    def __init__(self) -> None:
        super().__init__()
        self.group = SharedGroup(1, 0)
        self.end = 0
        self.where: dict[int, object] = {}  # offset -> member's name, "free" or "done"
        self.members: dict[str, ShareMember] = {}
        self.names = 0

    @rule(count=st.integers(1, 8))
    def publish(self, count: int) -> None:
        """The queue grows."""
        for _ in range(count):
            self.where[self.end] = "free"
            self.end += 1

    @rule(credit=st.integers(0, 4))
    def join(self, credit: int) -> None:
        """A new member."""
        self.names += 1
        name = f"m{self.names}"
        self.members[name] = member(self.group, name, credit)

    @rule(data=st.data(), credit=st.integers(-2, 4))
    @precondition(lambda self: self.members)
    def grant(self, data: st.DataObject, credit: int) -> None:
        """Room changes."""
        self.group.grant(self.members[data.draw(st.sampled_from(sorted(self.members)))], credit)

    @rule()
    def distribute(self) -> None:
        """Each offset goes to one member that can take it, and only if it was free; the lowest free ones go first."""
        free = sorted(offset for offset, holder in self.where.items() if holder == "free")
        given = distribute(self.group, self.end)
        assert [offset for _, offset in given] == free[: len(given)]
        for name, offset in given:
            self.where[offset] = name
        left = len(given) < len(free)
        assert not (left and self.group.capacity(1)), "a member could take what is left"

    @rule(data=st.data())
    @precondition(lambda self: self.members)
    def settle(self, data: st.DataObject) -> None:
        """Some of what a member has is acknowledged, some given back; what it does not have is ignored."""
        name = data.draw(st.sampled_from(sorted(self.members)))
        offsets = data.draw(st.lists(st.integers(0, max(0, self.end)), unique=True, max_size=6))
        cut = data.draw(st.integers(0, len(offsets)))
        self.group.settle(self.members[name], offsets[:cut], offsets[cut:])
        for index, offset in enumerate(offsets):
            if self.where.get(offset) == name:
                self.where[offset] = "done" if index < cut else "free"

    @rule(data=st.data(), retire=st.booleans())
    @precondition(lambda self: self.members)
    def leave(self, data: st.DataObject, retire: bool) -> None:
        """A member leaves, at once or after unsubscribing."""
        name = data.draw(st.sampled_from(sorted(self.members)))
        left = self.members.pop(name)
        if retire:
            self.group.retire(left)
        self.group.leave(left)
        self.where = {offset: "free" if holder == name else holder for offset, holder in self.where.items()}

    @rule()
    def restart(self) -> None:
        """Written and read again: what was in flight is free, what was done is done."""
        group = self.group
        self.group = SharedGroup(1, group.offsets.low, group.offsets.next, group.offsets.ranges())
        self.group.offsets.call_off()
        self.members.clear()
        self.where = {offset: "done" if holder == "done" else "free" for offset, holder in self.where.items()}

    @invariant()
    def agrees(self) -> None:
        """The low-water mark is the lowest offset that is not done, and the ranges are the rest of what is done."""
        done = {offset for offset, holder in self.where.items() if holder == "done"}
        low = next((offset for offset in range(self.end + 1) if offset not in done), self.end)
        assert self.group.offsets.low == low
        above = {offset for start, end in self.group.offsets.ranges() for offset in range(start, end)}
        assert above == {offset for offset in done if offset >= low}
        for name, joined in self.members.items():
            assert set(joined.held) == {offset for offset, holder in self.where.items() if holder == name}


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_what_is_bound_to_a_member_goes_to_no_other() -> None:
    """It ends with its member unless that has acknowledged it or given it back."""
    group = SharedGroup(7, 0)
    a = member(group, "a", 5)
    distribute(group, 5)
    group.settle(a, [], [], [0, 1, 2, 9])
    group.settle(a, [1], [2])
    assert group.leave(a) == 1
    assert group.leave(a) == 0
    member(group, "b", 9)
    assert [offset for _, offset in distribute(group, 5)] == [2, 3, 4]
    assert (group.offsets.low, group.offsets.ranges()) == (2, [])


def test_after_a_restart_what_a_session_has_noted_is_skipped() -> None:
    """Also what was given after the last record was written; not what lies above the queue's end, or is done."""
    group = SharedGroup(7, 1, 3, [(2, 3)])
    for offset in (1, 2, 4, 9):
        group.offsets.pass_over(offset, 5)
    assert (group.offsets.low, group.offsets.next, group.offsets.ranges(), group.offsets.dirty) == (
        3,
        5,
        [(4, 5)],
        True,
    )
    group.offsets.call_off()
    member(group, "b", 9)
    assert [offset for _, offset in distribute(group, 6)] == [3, 5]


def test_what_a_member_may_not_read_goes_to_one_that_may() -> None:
    """It is not given to the first one again; what all refuse goes to none."""
    group = SharedGroup(1, 0)
    one, two = group.join("one"), group.join("two")
    group.grant(one, 10)
    assert group.hand_out(0, 1) is one
    group.settle(one, [], [], refused=[0])
    assert not group.all_refused(0)
    assert group.hand_out(0, 1) is None  # the first one has room, and is not asked again
    group.grant(two, 1)
    assert group.hand_out(0, 1) is two
    group.settle(two, [], [], refused=[0, 77])
    assert group.all_refused(0)
    group.offsets.skip(0)
    assert group.offsets.low == 1
    assert group.hand_out(1, 1) is one
    group.settle(one, [], [], refused=[1])
    group.leave(two)
    assert group.all_refused(1)
    assert not group.all_refused(2)
