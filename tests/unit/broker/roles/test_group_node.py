"""Whatever comes and when: the log is open once, nothing works on it while it is closed, the newest order wins."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from broker.roles.group_node import (
    Action,
    Announce,
    Begin,
    Broken,
    CloseLog,
    ClosePorts,
    DamageFound,
    EndRole,
    Event,
    Expect,
    FenceOff,
    Finish,
    FollowMaster,
    GroupNode,
    Lead,
    Learn,
    LogOpened,
    MasterUnreachable,
    NodePhase,
    OpenLog,
    Ordered,
    Refuse,
    ReportLoss,
    RoleEnded,
    Serve,
    SetChanged,
    Start,
    StaysMaster,
    StoodStill,
    Stop,
    Suspend,
    Unfollow,
    Withdrawn,
)
from broker.roles.steps import KnownGroup, RoleChange

OWN = 1


def view(epoch: int, master: int | None = OWN, *, address: str = "m:2", set_epoch: int = 0) -> KnownGroup:
    return KnownGroup(epoch, master, "m:1" if master else "", address if master else "", frozenset({1, 2}), set_epoch)


def role(known: KnownGroup) -> RoleChange:
    return RoleChange(known, is_master=known.master == OWN)


def ordered(known: KnownGroup) -> Ordered:
    return Ordered(role(known))


def started() -> GroupNode:
    node = GroupNode()
    assert node.step(Start()) == (OpenLog(None),)
    assert node.step(LogOpened()) == ()
    return node


def led(epoch: int) -> GroupNode:
    """A node that is the master of an epoch."""
    node = started()
    for event in (ordered(view(epoch)), RoleEnded(), LogOpened()):
        node.step(event)
    return node


def test_a_replica_becomes_master_in_this_order() -> None:
    node, known, follows = started(), view(5), view(4, 2)
    assert node.step(ordered(follows)) == (Begin(role(follows)), Refuse("m:1", 4), FollowMaster(follows), Finish())
    assert node.step(ordered(known)) == (Begin(role(known)), Refuse("", 5), Suspend(), EndRole())
    assert node.step(RoleEnded()) == (Expect(), CloseLog(), OpenLog(5))
    assert node.step(LogOpened()) == (Lead(known, 2), Serve(5), Announce(), Finish())
    changed = replace(known, set_epoch=7)
    assert node.step(SetChanged(changed)) == (Learn(changed),)


def test_a_master_becomes_a_replica_and_refuses_first() -> None:
    node, known = led(5), view(6, 2)
    assert node.step(ordered(known)) == (Begin(role(known)), Refuse("m:1", 6), EndRole())
    assert node.step(RoleEnded()) == (CloseLog(), OpenLog(None))
    assert node.step(LogOpened()) == (FollowMaster(known), Finish())
    fenced = view(7, None)
    assert node.step(ordered(fenced)) == (Begin(role(fenced)), Refuse("", 7), FenceOff(7), Finish())


def test_an_overtaken_role_is_never_served() -> None:
    """Whether the newer order comes while the former role ends, or while the log opens."""
    node, newest = led(5), view(8, 2)
    node.step(ordered(view(6)))
    assert node.step(ordered(view(7))) == ()
    assert node.step(RoleEnded()) == (Begin(role(view(7))), Refuse("", 7), Suspend(), Expect(), CloseLog(), OpenLog(7))
    assert node.step(ordered(newest)) == ()
    assert node.step(LogOpened()) == (Begin(role(newest)), Refuse("m:1", 8), EndRole())
    assert node.step(RoleEnded()) == (CloseLog(), OpenLog(None))
    assert node.step(LogOpened()) == (FollowMaster(newest), Finish())
    assert node.changes == 4


def test_a_set_committed_meanwhile_is_the_one_that_is_led_with() -> None:
    node, newer = started(), view(5, set_epoch=9)
    node.step(ordered(view(5)))
    assert node.step(SetChanged(newer)) == ()
    node.step(RoleEnded())
    assert node.step(LogOpened())[0] == Lead(newer, None)


def test_a_master_without_an_address_is_followed_once_it_tells_one() -> None:
    node, silent, moved = started(), view(4, 2, address=""), view(4, 2, address="m:9")
    assert MasterUnreachable("m:1") in node.step(ordered(silent))
    assert node.step(SetChanged(moved)) == (FollowMaster(moved),)
    assert node.step(SetChanged(moved)) == ()


def test_a_move_that_is_heard_of_before_the_log_is_open_counts() -> None:
    node, moved = led(5), view(6, 2, address="m:9")
    node.step(ordered(view(6, 2)))
    node.step(SetChanged(moved))
    node.step(RoleEnded())
    assert node.step(LogOpened()) == (FollowMaster(moved), Finish())


def test_what_was_ordered_before_a_loss_is_void() -> None:
    node = started()
    node.step(ordered(view(4, 2)))
    assert node.step(DamageFound()) == (ReportLoss(), Unfollow())
    assert node.step(SetChanged(view(4, 2, address="m:9"))) == (), "nobody is followed until the controllers decide"
    assert node.step(ordered(view(6, 2))) == (
        Begin(role(view(6, 2))), Refuse("m:1", 6), FollowMaster(view(6, 2)), Finish(),
    )  # fmt: skip


def test_a_log_that_opens_damaged_waits_for_the_controllers() -> None:
    node = led(5)
    node.step(ordered(view(6, 2)))
    node.step(RoleEnded())
    assert node.step(LogOpened(is_damaged=True)) == (ReportLoss(), Finish())
    first = GroupNode()
    first.step(Start())
    first.step(ordered(view(4, 2)))
    assert first.step(LogOpened(is_damaged=True)) == (ReportLoss(),)
    master = GroupNode()
    for event in (Start(), LogOpened(), ordered(view(4)), RoleEnded()):
        master.step(event)
    assert master.step(LogOpened(is_damaged=True)) == (Lead(view(4), None), Finish()), "nobody is served"


def test_a_master_whose_log_opens_damaged_serves_where_no_other_one_can() -> None:
    node = GroupNode()
    for event in (Start(), LogOpened(), ordered(view(4)), RoleEnded(), LogOpened(is_damaged=True)):
        node.step(event)
    assert node.step(StaysMaster()) == (Serve(4), Announce())
    assert node.step(StaysMaster()) == (), "it serves already"


def test_a_damaged_master_that_is_replaced_serves_nobody() -> None:
    node = GroupNode()
    for event in (Start(), LogOpened(), ordered(view(4)), RoleEnded(), LogOpened(is_damaged=True), ordered(view(5, 2))):
        node.step(event)
    assert node.step(StaysMaster()) == (), "the role is being ended"
    node.step(RoleEnded())
    assert node.step(StaysMaster()) == ()
    node.step(LogOpened())
    assert node.step(StaysMaster()) == (), "it is a replica now"


def test_a_master_whose_log_is_damaged_stays_until_it_is_replaced() -> None:
    node = led(5)
    assert node.step(Withdrawn()) == ()
    assert node.step(SetChanged(view(5, set_epoch=3))) == (Learn(view(5, set_epoch=3)),)


def test_a_withdrawn_order_leaves_a_replica() -> None:
    node = started()
    node.step(ordered(view(5)))
    node.step(RoleEnded())
    assert node.step(Withdrawn()) == ()
    assert node.step(LogOpened()) == (EndRole(),)
    assert node.step(RoleEnded()) == (Refuse("", 5), CloseLog(), OpenLog(None))
    assert node.step(LogOpened()) == (Finish(),)


def test_who_came_before_a_pause_does_not_count_for_the_master() -> None:
    """A replica that waits for the log to be open may have been sent here by an election that is over."""
    node = started()
    assert node.step(StoodStill()) == ()
    node.step(ordered(view(5)))
    assert node.step(StoodStill()) == (), "all connections end with the former role"
    node.step(RoleEnded())
    assert node.step(StoodStill()) == (Expect(),)
    node.step(LogOpened())
    assert node.step(StoodStill()) == (), "the master itself ends them"


def test_a_stop_ends_the_role_and_nothing_is_done_after_it() -> None:
    node = led(5)
    assert node.step(Stop("m:9", 5)) == (Refuse("m:9", 5), EndRole(good_bye=True))
    assert node.step(ordered(view(6, 2))) == ()
    assert node.step(RoleEnded()) == (ClosePorts(), CloseLog())
    assert node.step(ordered(view(7, 2))) == node.step(Stop("", 7)) == ()


def test_after_a_failure_only_the_stop_is_carried_out() -> None:
    node = led(5)
    node.step(ordered(view(6, 2)))
    assert node.step(Broken()) == node.step(ordered(view(7, 2))) == node.step(RoleEnded()) == ()
    assert node.step(Stop("", 7)) == (Refuse("", 7), EndRole(good_bye=True))


class Shell:
    """Carries actions out on a log that is open or not, and objects to what must not be."""

    def __init__(self) -> None:
        self.node = GroupNode()
        self.opened: int | None = None
        """0 for a replica's log."""
        self.leads = self.serves = self.follows = self.announced = 0
        self.suspends = False
        """Whether requests wait."""
        self.withholds = False
        """Whether the log was opened damaged, and another master is to come."""
        self.slow: Action | None = None
        self.feed(Start())

    def feed(self, event: Event) -> None:
        for action in self.node.step(event):
            assert self.slow is None, f"{action} while {self.slow} is under way"
            self.do(action)

    def end(self, *, is_damaged: bool) -> None:
        """What is under way is done."""
        slow, self.slow = self.slow, None
        if isinstance(slow, OpenLog):
            self.opened, self.withholds = slow.epoch or 0, is_damaged
            self.feed(LogOpened(is_damaged=is_damaged))
        elif slow is not None:
            self.leads = self.follows = self.announced = 0
            self.feed(RoleEnded())

    def stays(self) -> None:
        """Nobody else is to be the master."""
        self.withholds = False
        self.feed(StaysMaster())

    def do(self, action: Action) -> None:
        match action:
            case EndRole() | OpenLog():
                assert self.opened is None or isinstance(action, EndRole)
                assert not self.serves
                self.slow = action
            case CloseLog():
                assert (self.leads, self.follows, self.serves) == (0, 0, 0)
                self.opened = None
            case Refuse():
                self.serves, self.suspends = 0, False
            case Suspend():
                self.suspends = True
            case FollowMaster(view):
                assert self.opened == 0
                self.follows = view.epoch
            case Unfollow():
                self.follows = 0
            case _:
                self.be_master(action)

    def be_master(self, action: Action) -> None:
        match action:
            case Lead(view):
                assert self.opened == view.epoch
                self.leads = view.epoch
            case Serve(epoch):
                assert (self.leads, self.withholds) == (epoch, False)
                self.serves, self.suspends = epoch, False
            case Announce():
                assert self.serves
                self.announced = self.serves
            case Learn():
                assert self.leads


OTHERS = st.sampled_from([OWN, 2, 3, None])
HAPPENS = st.one_of(
    OTHERS.map(lambda master: ("order", master)),
    st.sampled_from([("end", False), ("end", False), ("end", True)]),
    st.sampled_from([("set", None), ("damage", None), ("void", None), ("stays", None)]),
)


def check_served(shell: Shell, epoch: int) -> None:
    """As the master of this epoch, 0 for none, and at once where its log is sound."""
    assert shell.leads == epoch
    if epoch and shell.withholds:
        assert (shell.serves, shell.announced, shell.suspends) == (0, 0, True)
        shell.stays()
    assert (shell.serves, shell.announced, shell.suspends) == (epoch, epoch, False)


@given(st.lists(HAPPENS, max_size=40))
def test_in_the_end_the_newest_order_is_carried_out(happens: list[tuple[str, object]]) -> None:
    shell, epoch, newest = Shell(), 1, None
    for what, value in happens:
        if what == "order":
            epoch += 1
            newest = role(view(epoch, value))  # type: ignore[arg-type]
            shell.feed(Ordered(newest))
        elif what == "end":
            if value and isinstance(shell.slow, OpenLog) and shell.slow.epoch is None:
                newest = None
            shell.end(is_damaged=bool(value))
        elif what == "set" and newest is not None:
            newest = replace(newest, view=replace(newest.view, set_epoch=newest.view.set_epoch + 1))
            shell.feed(SetChanged(newest.view))
        elif what == "stays" and shell.leads:
            shell.stays()
        elif what in ("damage", "void") and not shell.leads:
            newest = None
            shell.feed(DamageFound() if what == "damage" else Withdrawn())
    while shell.slow is not None:
        shell.end(is_damaged=False)
    assert shell.node.phase is NodePhase.IN_ROLE
    is_master = newest is not None and newest.is_master
    expected = newest.view.epoch if newest is not None and is_master else 0
    check_served(shell, expected)
    if newest is not None and not is_master and not newest.is_fenced:
        assert shell.follows == newest.view.epoch
    shell.feed(Stop("", epoch))
    shell.end(is_damaged=False)
    assert (shell.opened, shell.serves, shell.node.phase) == (None, 0, NodePhase.STOPPED)
