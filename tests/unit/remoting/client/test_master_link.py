"""Finding the master, against a naive model: the same decisions written as one function that is called from the top."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remoting.client.master_link import AskControllers, Backoff, DialMaster, MasterLink, full
from remoting.protocol.bodies.controller_body import BrokerData, ClusterInfo, PushedGroup, PushedRoutes
from remoting.protocol.errors import LightMQError, Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.failures import ConnectionLost, NotMaster


def cluster(**masters: str) -> ClusterInfo:
    return ClusterInfo({name: BrokerData("C", name, {0: at} if at else {1: "x:1"}) for name, at in masters.items()})


def denial(address: str = "", epoch: int = 0) -> NotMaster:
    fields = {"masterAddress": address, "masterEpoch": str(epoch)}
    return NotMaster(Command(ResponseCode.NOT_MASTER, fields=fields))


def test_a_known_master_is_dialled_else_the_controllers_are_asked() -> None:
    link = MasterLink("g")
    link.begin()
    assert link.next() == AskControllers()
    link.found(cluster(g="a:1", f="x:1"))
    assert link.next() == DialMaster("a:1")
    link.reached("a:1")
    assert (link.next(), link.address) == (None, "a:1")
    link.begin()
    assert link.next() == DialMaster("a:1")
    link.failed(ConnectionLost("gone"))
    assert (link.next(), link.address) == (AskControllers(), "")
    link.failed(ConnectionLost("no controller answers"))
    assert (link.next(), str(link.failure)) == (None, "no controller answers")


def test_a_master_named_during_the_search_is_dialled() -> None:
    link = MasterLink("g")
    link.begin()
    assert link.named("b:1", 3)
    link.failed(ConnectionLost("no controller answers"))
    assert link.next() == DialMaster("b:1")
    link.failed(ConnectionLost("gone"))
    assert link.next() is None


def test_a_broker_that_denies_is_dialled_in_turn_with_asking() -> None:
    link = MasterLink("g", "a:1")
    assert not link.refused(denial(), by="a:1")
    assert not link.begin()
    assert link.next() == AskControllers()
    link.found(cluster(g="a:1"))
    link.reached("a:1")
    link.refused(denial(), by="a:1")
    link.begin()
    assert link.next() == DialMaster("a:1")
    link.refused(denial(), by="a:1")
    assert link.begin(is_pushed=True), "controllers that push are asked for an update instead"
    assert link.next() == DialMaster("a:1")
    assert link.refused(denial("b:1", 2), by="a:1")
    assert link.address == "b:1"
    link.refused(denial(), by="a:1")
    link.begin()
    assert link.next() == DialMaster("b:1"), "it counts only for the broker taken for the master"


def test_what_controllers_push() -> None:
    link = MasterLink()
    assert not link.pushed(PushedRoutes({"g": PushedGroup("C", {1: "x:1"}, 1)}))
    assert link.pushed(PushedRoutes({"g": PushedGroup("C", {0: "a:1"}, 1)})), "some group has a master: ask now"
    with pytest.raises(Refused, match="there are the broker groups f, g: name the one"):
        link.choose(cluster(f="", g="a:1"))
    assert link.choose(cluster(g="a:1")) == "a:1"
    assert link.broker_name == "g"
    assert link.pushed(PushedRoutes({"g": PushedGroup("C", {0: "b:1"}, 2)}))
    assert not link.pushed(PushedRoutes({"g": PushedGroup("C", {0: "a:1"}, 1)}))
    assert (link.address, link.epoch) == ("b:1", 2)
    assert not link.pushed(PushedRoutes({"g": PushedGroup("C", {}, 3)}))
    assert link.address == ""


def test_a_controller_that_cannot_elect_names_the_lost_master_in_vain() -> None:
    """Another broker stands in for it; a later election counts, and the lost one does after the next attempt."""
    lost, later = (
        PushedRoutes({"g": PushedGroup("C", {0: address}, epoch)}) for address, epoch in (("a:1", 1), ("c:1", 2))
    )
    link = MasterLink("g", "")
    assert link.pushed(lost)
    link.begin(is_pushed=True)
    link.failed(ConnectionLost("gone"))
    assert link.pushed(lost), "no other broker is known yet"
    link.begin(is_pushed=True)
    link.failed(ConnectionLost("gone"))
    link.found(cluster(g="b:1"))
    assert link.next() == DialMaster("b:1")
    link.reached("b:1")
    assert not link.pushed(lost)
    assert link.address == "b:1"
    link.begin()
    link.reached("b:1")
    assert link.pushed(lost)
    assert link.pushed(later)
    assert link.address == "c:1"


def test_no_master_anywhere() -> None:
    with pytest.raises(Refused, match="no broker is registered at c:1"):
        MasterLink(asked="c:1").choose(cluster(g=""))
    with pytest.raises(Refused, match=r"broker 'g' has no master \(known: f, g\)"):
        MasterLink("g").choose(cluster(g="", f="a:1"))


def test_pauses_double_up_to_the_longest_and_start_over() -> None:
    backoff = Backoff(10, 50, patience_ms=1_000)
    assert [backoff.failed(now) for now in (0, 10, 20, 999)] == [10, 20, 40, 50]
    assert backoff.failed(1_000) is None
    backoff.reached()
    assert (backoff.lost(), backoff.failed(2_000), full()) == (10, 10, 1.0)
    assert Backoff(10, 50, spread=lambda: 0.5).failed(0) == 5


def test_a_failed_master_is_searched_for_and_dialled_in_turn():
    """With the controllers dead it is dialled all the same: the failure may have been brief."""
    link = MasterLink("g", "a:1")
    link.doubt("b:1")
    link.begin()
    assert link.next() == DialMaster("a:1"), "it counts only for the broker taken for the master"
    link.doubt("a:1")
    link.begin()
    assert link.next() == AskControllers()
    link.failed(ConnectionLost("all of them are dead"))
    assert link.next() == DialMaster("a:1")


@dataclass
class World:
    """What answers: which brokers live, what controllers answer, and what is reported while a step is carried out."""

    alive: frozenset[str]
    answers: list[ClusterInfo | None]
    meanwhile: list[tuple[str, int] | None]
    steps: list[DialMaster | AskControllers] = field(default_factory=list)

    def carry_out(self, step: DialMaster | AskControllers) -> Iterator[tuple[str, int]]:
        """What is reported meanwhile."""
        self.steps.append(step)
        said = self.meanwhile.pop() if self.meanwhile else None
        if said is not None:
            yield said

    def dial(self, address: str) -> str:
        if address not in self.alive:
            raise ConnectionLost(address)
        return address

    def ask(self) -> ClusterInfo:
        answer = self.answers.pop() if self.answers else None
        if answer is None:
            raise ConnectionLost("no controller answers")
        return answer


class Naive:
    """The algorithm as prose would describe it."""

    def __init__(self) -> None:
        self.name, self.address, self.epoch, self.denials = "", "", 0, 0

    def told(self, address: str, epoch: int) -> None:
        if epoch >= self.epoch:
            self.epoch = epoch
            if address != self.address:
                self.address, self.denials = address, 0

    def denied(self, by: str) -> None:
        if by == self.address:
            self.denials += 1

    def connect(self, world: World) -> str:
        known = self.address
        if known and self.denials % 2 == 0:
            try:
                return self._dial(world, known)
            except ConnectionLost:
                if self.address == known:
                    self.address = ""
        try:
            for said in world.carry_out(AskControllers()):
                self.told(*said)
            found = self._master(world.ask())
        except LightMQError:
            if not self.address:
                raise
            self.denials = 0
            return self._dial(world, self.address)
        self._dial(world, found)
        if found != self.address:
            self.address, self.denials = found, 0
        return found

    def _dial(self, world: World, address: str) -> str:
        for said in world.carry_out(DialMaster(address)):
            self.told(*said)
        return world.dial(address)

    def _master(self, answer: ClusterInfo) -> str:
        known = sorted(answer.broker_addr_table)
        for name in [self.name] if self.name else known if len(known) == 1 else []:
            broker = answer.broker_addr_table.get(name)
            if broker is not None and broker.master() is not None:
                self.name = name
                return str(broker.master())
        raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, "none")


def attempt(link: MasterLink, world: World) -> str:
    """What the caller of the machine does."""
    link.begin()
    while (step := link.next()) is not None:
        for said in world.carry_out(step):
            link.named(*said)
        try:
            if isinstance(step, DialMaster):
                world.dial(step.address)
                link.reached(step.address)
                return step.address
            link.found(world.ask())
        except LightMQError as error:
            link.failed(error)
    assert link.failure is not None
    raise link.failure


ADDRESS = st.sampled_from(["a:1", "b:1", "c:1"])
TOLD = st.tuples(ADDRESS | st.just(""), st.integers(0, 5))
CLUSTERS = st.dictionaries(st.sampled_from(["f", "g"]), ADDRESS | st.just("")).map(lambda names: cluster(**names))
WORLDS = st.tuples(
    st.frozensets(ADDRESS), st.lists(st.none() | CLUSTERS, max_size=2), st.lists(st.none() | TOLD, max_size=3)
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("told"), TOLD),
        st.tuples(st.just("denied"), ADDRESS),
        st.tuples(st.just("connect"), WORLDS),
    ),
    max_size=20,
)


@settings(max_examples=500, deadline=None)
@given(STEPS)
def test_the_machine_decides_as_the_naive_model_does(steps: list) -> None:
    link, naive = MasterLink(), Naive()
    for step, argument in steps:
        if step == "told":
            link.named(*argument)
            naive.told(*argument)
        elif step == "denied":
            link.refused(denial(), argument)
            naive.denied(argument)
        else:
            outcomes = []
            for side, run in ((link, attempt), (naive, lambda one, world: one.connect(world))):
                world = World(argument[0], list(argument[1]), list(argument[2]))
                try:
                    outcome = run(side, world)
                except LightMQError as error:
                    outcome = type(error).__name__
                outcomes.append((outcome, world.steps))
            assert outcomes[0] == outcomes[1]
            assert len(outcomes[0][1]) <= 3
        assert (link.broker_name, link.address, link.epoch) == (naive.name, naive.address, naive.epoch)
