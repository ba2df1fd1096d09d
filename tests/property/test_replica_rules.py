"""The controllers' state machine against its rules, one sentence each, kept as plain sets and numbers.

The model knows one group and no bytes; it decides from the rules what each command must come to, and the machine must
come to the same. Restarts belong to other tests: here every start of a broker is its first.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from controller.replicas.group import (
    AlterSyncStateSet,
    ApplyBrokerId,
    CleanReplicas,
    ElectMaster,
    Live,
    RegisterReplica,
)
from controller.replicas.machine import ReplicaMachine

IDS = st.integers(1, 4)
LIVES = st.dictionaries(IDS, st.builds(Live, st.integers(-1, 3), st.integers(0, 3), st.integers(0, 2)), max_size=4)
GUESSES = st.integers(-1, 1)
"""How far a caller is off with an epoch."""


class Rules(RuleBasedStateMachine):
    """One group as the rules describe it."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = ReplicaMachine()
        self.forget()

    def forget(self) -> None:
        self.codes: dict[int, str] = {}
        self.registered: set[int] = set()
        self.next_id = 1
        self.master: int | None = None
        self.epoch = self.set_epoch = self.floor = 0
        self.in_sync: set[int] = set()

    @initialize(begun=st.booleans())
    def begin(self, begun: bool) -> None:
        """Half of the examples begin with three brokers in sync and a master, which is rarely drawn by chance."""
        if not begun:
            return
        for broker in (1, 2, 3):
            self.apply_id(broker, "x")
            self.register(broker, -1)
        self.elect({1: Live(0, 0)}, 1, False, False)
        self.alter(0, 0, 1, {2, 3}, {1, 2, 3}, True)

    def agree(self) -> None:
        group = self.machine.groups.get("g")
        if not self.codes:
            assert group is None
            return
        assert group is not None
        assert (group.master, group.master_epoch, group.set_epoch) == (self.master, self.epoch, self.set_epoch)
        assert set(group.in_sync) == self.in_sync
        assert (set(group.replicas), group.next_id) == (set(self.codes), self.next_id)

    @rule(broker=IDS, code=st.sampled_from("xy"))
    def apply_id(self, broker: int, code: str) -> None:
        """The first of a group is 1; an id belongs to the owner of the code it was taken with."""
        free = broker not in self.codes and (bool(self.codes) or broker == 1)
        outcome = self.machine.apply(ApplyBrokerId("C", "g", broker, code))
        assert (outcome.code == 0) == (free or self.codes.get(broker) == code)
        if free:
            self.codes[broker] = code
            self.next_id = max(self.next_id, broker + 1)
        self.agree()

    @rule(broker=IDS, last_epoch=st.integers(-1, 5))
    def register(self, broker: int, last_epoch: int) -> None:
        """Every broker with an id may register, with the last epoch of its log."""
        known = broker in self.codes
        outcome = self.machine.apply(RegisterReplica("C", "g", broker, f"h:{broker}", last_epoch=last_epoch))
        assert (outcome.code == 0) == known
        if known:
            self.registered.add(broker)
            self.floor = max(self.floor, last_epoch)
        self.agree()

    @rule(live=LIVES, asked_by=st.none() | IDS, designated=st.booleans(), unclean=st.booleans())
    def elect(self, live: dict[int, Live], asked_by: int | None, designated: bool, unclean: bool) -> None:
        """Best log first among those alive and in sync; the epoch rises above all that were ever reported."""
        outcome = self.machine.apply(ElectMaster("C", "g", live, asked_by, designated, unclean))
        winner = self.winner(live, asked_by, designated, unclean)
        assert (outcome.code == 0) == (winner is not None)
        if winner is not None:
            self.epoch = 1 + max([self.epoch, self.floor, *(each.epoch for each in live.values())])
            self.in_sync = self.in_sync if winner in self.in_sync else {winner}
            self.master, self.set_epoch = winner, self.set_epoch + 1
        elif self.codes and self.may_ask(asked_by) and self.epoch and self.master not in (None, *live):
            self.master, self.epoch = None, self.epoch + 1
        self.agree()

    def may_ask(self, asked_by: int | None) -> bool:
        return asked_by is None or asked_by in self.registered

    def winner(self, live: dict[int, Live], asked_by: int | None, designated: bool, unclean: bool) -> int | None:
        if not self.codes or not self.may_ask(asked_by):
            return None
        if self.epoch == 0:
            return asked_by if asked_by in live else None
        moves = designated and asked_by not in (None, self.master)
        if self.master in live and not moves:
            return None
        for allowed in (self.in_sync, set(self.codes) if unclean else set()):
            able = allowed & set(live) & self.registered
            if designated:
                able &= {asked_by}
            best = sorted(able, key=lambda each: (-live[each].epoch, -live[each].max_offset, live[each].priority, each))
            if best:
                return best[0]
        return None

    @rule(master_of=GUESSES, set_of=GUESSES, caller=IDS, members=st.sets(IDS), alive=st.sets(IDS), right=st.booleans())
    def alter(self, master_of: int, set_of: int, caller: int, members: set[int], alive: set[int], right: bool) -> None:
        """Only by the master, in its epoch, from the present set to one that includes itself; who joins is alive."""
        if right and self.master is not None:
            caller, master_of, set_of, members, alive = self.master, 0, 0, members | {self.master}, alive | members
            alive = alive | {caller}
        command = AlterSyncStateSet(
            "g", caller, self.epoch + master_of, self.set_epoch + set_of, tuple(members), tuple(alive)
        )
        outcome = self.machine.apply(command)
        fits = master_of == 0 and set_of == 0 and caller == self.master
        joining = members - self.in_sync
        allowed = bool(self.codes) and fits and caller in members and members <= set(self.codes) and joining <= alive
        assert (outcome.code == 0) == allowed
        if allowed:
            self.in_sync, self.set_epoch = set(members), self.set_epoch + 1
        self.agree()

    @rule(gone=st.sets(IDS, min_size=1), alive=st.sets(IDS), forced=st.booleans())
    def clean(self, gone: set[int], alive: set[int], forced: bool) -> None:
        """Only those that are not alive, unless forced; the last one removes the group."""
        outcome = self.machine.apply(CleanReplicas("C", "g", tuple(gone), tuple(alive), forced))
        allowed = bool(self.codes) and gone <= set(self.codes) and (forced or not gone & alive)
        assert (outcome.code == 0) == allowed
        if not allowed:
            return
        self.codes = {each: code for each, code in self.codes.items() if each not in gone}
        self.registered -= gone
        if not self.codes:
            self.forget()
        elif self.master in gone:
            self.master, self.epoch = None, self.epoch + 1
        if self.in_sync & gone:
            self.in_sync, self.set_epoch = self.in_sync - gone, self.set_epoch + 1
        self.agree()


TestRules = Rules.TestCase
TestRules.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
