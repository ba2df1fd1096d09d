"""Plans are the same for the same seed, use every kind of fault, and name only existing nodes."""

from __future__ import annotations

from itertools import islice

from tests.chaos.network import NamespaceNetwork, ProxiedNetwork
from tests.chaos.plan import ALWAYS, OF_CONTROLLERS, OF_DISKS, Fault, Plan

ROLES = {"c1": "controller", "c2": "controller", "b1": "broker", "b2": "broker", "p1": "proxy", "l1": "learner"}
KINDS = NamespaceNetwork.kinds | ProxiedNetwork.kinds | OF_DISKS | OF_CONTROLLERS
KINDS |= {"clock_jump", "full_disk", "slow_disk", "learner_anew", "pause_long", "rolling"}


def plan(seed: int, count: int) -> list[Fault]:
    return list(islice(Plan(seed, ROLES, KINDS).faults(), count))


def test_one_seed_is_one_plan() -> None:
    """A run can be repeated from its seed."""
    assert plan(7, 200) == plan(7, 200)
    assert plan(7, 20) != plan(8, 20)


def test_every_kind_comes_early() -> None:
    """A short run meets each kind once."""
    kinds = {fault.kind for fault in plan(3, len(ALWAYS) + len(KINDS))}
    assert kinds == {*ALWAYS, *KINDS}


def test_targets_exist_and_times_are_bounded() -> None:
    """Disks are those of brokers; a partial cut never names its own node; some faults hit both kinds of server."""
    faults = plan(5, 500)
    for fault in [*faults, *[fault.together for fault in faults if fault.together is not None]]:
        assert set(fault.targets) <= set(ROLES)
        assert 0 <= fault.lasts_s <= (60 if fault.kind == "pause_long" else 6)
        if fault.kind in OF_DISKS:
            assert {ROLES[name] for name in fault.targets} == {"broker"}
        if fault.kind in OF_CONTROLLERS:
            assert {ROLES[name] for name in fault.targets} == {"controller"}
        if fault.kind in ("full_disk", "slow_disk"):
            assert ROLES[fault.targets[0]] in ("broker", "controller")
        if fault.kind == "learner_anew":
            assert fault.targets == ("l1",)
        if fault.kind in ("ring", "bridge"):
            assert set(fault.targets) == set(ROLES)
        if fault.kind == "partial_cut":
            assert not set(fault.details["others"]) & set(fault.targets)
    both = [fault for fault in faults if fault.together is not None]
    pairs = {(ROLES[fault.targets[0]], ROLES[fault.together.targets[0]]) for fault in both if fault.together}
    assert {("broker", "controller"), ("controller", "broker")} <= pairs


def test_scale_shortens_everything() -> None:
    """The quick run has the same faults, shorter."""
    long, short = plan(5, 50), list(islice(Plan(5, ROLES, KINDS, scale=0.1).faults(), 50))
    assert [fault.kind for fault in long] == [fault.kind for fault in short]
    assert sum(fault.lasts_s for fault in short) < sum(fault.lasts_s for fault in long) * 0.2
