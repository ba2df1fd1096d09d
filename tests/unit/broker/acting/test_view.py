"""Who stands in: the rules one by one, and name servers with lost and late messages, under which never two do."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.acting.view import RULES, ActingSituation, ActingVerdict, StandIn, judge
from controller.name_server.state import Liveness, MetadataState, RegisterBroker, RemoveMember, member_group

OWN = (2, "h:2")
ALONE = {2: "h:2", 3: "h:3"}
LEASE_MS = 2_000

SITUATIONS = {
    ActingVerdict.OFF: ActingSituation(None, master_heard=False, lists=[ALONE], settled=True),
    ActingVerdict.MASTER_HEARD: ActingSituation(OWN, master_heard=True, lists=[ALONE], settled=True),
    ActingVerdict.UNSEEN: ActingSituation(OWN, master_heard=False, lists=[], settled=True),
    ActingVerdict.MASTER_LISTED: ActingSituation(
        OWN, master_heard=False, lists=[ALONE, {0: "h:1", **ALONE}], settled=True
    ),
    ActingVerdict.UNLISTED: ActingSituation(OWN, master_heard=False, lists=[ALONE, {3: "h:3"}], settled=True),
    ActingVerdict.SMALLER_LISTED: ActingSituation(
        OWN, master_heard=False, lists=[ALONE, {1: "h:1", **ALONE}], settled=True
    ),
    ActingVerdict.SETTLING: ActingSituation(OWN, master_heard=False, lists=[ALONE], settled=False),
    ActingVerdict.ACTS: ActingSituation(OWN, master_heard=False, lists=[ALONE, {2: "h:2"}], settled=True),
}


def test_every_verdict_has_a_rule_and_a_situation() -> None:
    assert [verdict for verdict, _rule in RULES] == list(ActingVerdict) == list(SITUATIONS)


@pytest.mark.parametrize("verdict", ActingVerdict)
def test_the_rules_one_by_one(verdict: ActingVerdict) -> None:
    assert judge(SITUATIONS[verdict]) is verdict


def test_another_brokers_address_under_the_own_id_is_another_broker() -> None:
    assert judge(ActingSituation(OWN, master_heard=False, lists=[{2: "h:9"}], settled=True)) is ActingVerdict.UNLISTED


def stand_in(*name_servers: str) -> StandIn:
    """A replica that these have listed for a lease when the clock shows 0."""
    part = StandIn(LEASE_MS)
    part.become(OWN, -LEASE_MS)
    for name in name_servers or ("n",):
        for at_ms in (-LEASE_MS, -LEASE_MS // 2):
            part.listed(name, {0: "h:1", **ALONE}, at_ms, at_ms)
    return part


def test_a_list_counts_from_when_it_was_asked_for() -> None:
    part = stand_in()
    part.listed("n", ALONE, 100, 900)
    assert part.verdict(LEASE_MS + 99, master_heard=False) is ActingVerdict.ACTS
    assert part.verdict(LEASE_MS + 100, master_heard=False) is ActingVerdict.UNSEEN


def test_all_lists_that_count_must_agree() -> None:
    part = stand_in("n", "m")
    part.listed("n", ALONE, 0, 0)
    part.listed("m", {0: "h:1", **ALONE}, 500, 500)
    assert part.verdict(1_000, master_heard=False) is ActingVerdict.MASTER_LISTED
    part.listed("n", ALONE, 1_500, 1_500)
    assert part.verdict(2_500, master_heard=False) is ActingVerdict.ACTS


def test_an_overtaken_answer_does_not_count() -> None:
    part = stand_in()
    part.listed("n", {0: "h:1", **ALONE}, 500, 500)
    part.listed("n", ALONE, 400, 501)
    assert part.verdict(600, master_heard=False) is ActingVerdict.MASTER_LISTED


def test_who_was_not_listed_for_a_lease_waits() -> None:
    """A larger id may still hold a list that was made before."""
    part = StandIn(LEASE_MS)
    part.become(OWN, 0)
    part.listed("n", ALONE, 0, 10)
    part.listed("n", ALONE, 1_500, 1_510)
    assert part.verdict(LEASE_MS + 9, master_heard=False) is ActingVerdict.SETTLING
    assert part.verdict(LEASE_MS + 10, master_heard=False) is ActingVerdict.ACTS


@pytest.mark.parametrize("gap", [{3: "h:3"}, None])
def test_who_was_missing_in_between_waits_again(gap: dict[int, str] | None) -> None:
    part = stand_in()
    part.listed("n", ALONE, 0, 0)
    at_ms = 500 if gap is not None else LEASE_MS
    if gap is not None:
        part.listed("n", gap, 400, 400)
    part.listed("n", ALONE, at_ms, at_ms)
    assert part.verdict(at_ms, master_heard=False) is ActingVerdict.SETTLING


def test_a_push_ends_the_part_at_once() -> None:
    part = stand_in()
    part.listed("n", ALONE, 0, 0)
    part.smallest_changed(OWN[0], 100)
    assert part.verdict(100, master_heard=False) is ActingVerdict.ACTS
    part.smallest_changed(0, 100)
    assert part.verdict(100, master_heard=False) is ActingVerdict.UNSEEN
    part.listed("n", ALONE, 99, 150)
    assert part.verdict(150, master_heard=False) is ActingVerdict.UNSEEN, "it was asked for before"


def test_a_new_place_needs_a_new_list() -> None:
    part = stand_in()
    part.listed("n", ALONE, 0, 0)
    part.become(None, 1)
    part.become(OWN, 2)
    assert part.verdict(3, master_heard=False) is ActingVerdict.UNSEEN


class Rig:
    """One name server as it is shipped, three brokers, and messages that may be lost or take any time."""

    def __init__(self, lease_ms: int, silence_ms: int) -> None:
        self.state, self.lives = MetadataState(), Liveness(silence_ms)
        self.silence_ms, self.now_ms = silence_ms, 0
        self.parts = {number: StandIn(lease_ms) for number in (1, 2, 3)}
        self.master: int | None = None
        for number, part in self.parts.items():
            part.become((number, f"h:{number}"), 0)

    def show(self, number: int) -> None:
        """A registration arrives."""
        place = 0 if number == self.master else number
        self.state.apply(RegisterBroker("C", "g", place, f"h:{number}", enable_acting_master=True))
        self.lives.add(("C", f"h:{number}"), self.now_ms, self.silence_ms)

    def pass_ms(self, duration_ms: int) -> None:
        self.now_ms += duration_ms
        for cluster, address in self.lives.tick(self.now_ms):
            self.state.apply(RemoveMember(cluster, address, "silent"))

    def acting(self) -> list[int]:
        return [
            number
            for number, part in self.parts.items()
            if part.verdict(self.now_ms, master_heard=False) is ActingVerdict.ACTS
        ]


ROUNDS = st.lists(
    st.tuples(
        st.integers(1, 3),  # who sends a sign of life and asks
        st.integers(0, 500),  # how long both take to the name server
        st.integers(0, 800),  # how long the answer takes
        st.sampled_from(("both", "both", "both", "both", "answer lost", "becomes master")),
        st.integers(0, 700),  # until the next
    ),
    min_size=5,
    max_size=40,
)


def play(rig: Rig, rounds: list[tuple[int, int, int, str, int]]) -> int:
    """Never two stand in; how often one did."""
    found = 0
    events: list[tuple[int, int, str, int, int]] = []
    at_ms = 0
    for order, (number, there_ms, back_ms, fate, pause_ms) in enumerate(rounds):
        if fate == "becomes master":
            events.append((at_ms, order, "master", number, 0))
        else:
            events.append((at_ms + there_ms, order, "shown", number, 0))
            if fate == "both":
                events.append((at_ms + there_ms, order, f"asked {back_ms}", number, at_ms))
        at_ms += pause_ms
    while events:
        events.sort(key=lambda event: event[:2])
        due_ms, order, what, number, asked_ms = events.pop(0)
        while rig.now_ms < due_ms:  # the name server looks for silent brokers often
            rig.pass_ms(min(100, due_ms - rig.now_ms))
            assert len(rig.acting()) <= 1
        if what == "master":
            rig.master = number
            rig.parts[number].become(None, rig.now_ms)
        elif what == "shown":
            rig.show(number)
        elif what.startswith("asked"):
            members = member_group(rig.state.metadata, "C", "g").broker_addrs
            events.append((due_ms + int(what.split()[1]), order, repr(members), number, asked_ms))
        else:
            members = {int(key): address for key, address in ast.literal_eval(what).items()}
            rig.parts[number].listed("n", members, asked_ms, rig.now_ms)
        acting = rig.acting()
        assert len(acting) <= 1, acting
        assert rig.master not in acting
        found += len(acting)
    return found


@given(ROUNDS)
@settings(max_examples=60, deadline=None)
def test_never_two_stand_in(rounds: list[tuple[int, int, int, str, int]]) -> None:
    play(Rig(LEASE_MS, LEASE_MS), rounds)


STEADY = [(number, 0, 0, "both", 250) for _ in range(12) for number in (1, 2)]
LEFT_ALONE = [(2, 0, 0, "both", 500)] * 6


def test_the_next_one_stands_in_when_the_first_falls_silent() -> None:
    """The property above is about something that happens."""
    rig = Rig(LEASE_MS, LEASE_MS)
    assert play(rig, STEADY + LEFT_ALONE) > 10
    assert rig.acting() == [2]


def test_a_lease_longer_than_the_name_servers_patience_lets_two_stand_in() -> None:
    """The check of the property sees what it is there for."""
    steady = STEADY + STEADY
    with pytest.raises(AssertionError, match=r"\[1, 2\]"):
        play(Rig(2 * LEASE_MS, LEASE_MS), steady + LEFT_ALONE)


def test_the_others_are_those_that_are_listed_now() -> None:
    part = StandIn(2_000)
    part.become((1, "h:1"), 0)
    part.listed("n1", {0: "h:0", 1: "h:1", 2: "h:2"}, 100, 100)
    part.listed("n2", {1: "h:1", 3: "h:3"}, 900, 900)
    assert part.others(1_000) == {"h:2", "h:3"}
    assert part.others(2_500) == {"h:3"}
    assert part.others(3_000) == set()
