"""Short forms for groups and commands."""

from __future__ import annotations

from controller.replicas.group import AlterSyncStateSet, ApplyBrokerId, ElectMaster, Live, Outcome, RegisterReplica
from controller.replicas.machine import ReplicaMachine


def live(*ids: int, **states: tuple[int, int]) -> dict[int, Live]:
    """Live replicas; `r2=(epoch, end)` is what its heartbeat reported."""
    return {**{each: Live(0, 100) for each in ids}, **{int(name[1:]): Live(*state) for name, state in states.items()}}


def register(broker_id: int, boot: str = "a", *, safe: bool = True, epoch: int = -1) -> RegisterReplica:
    return RegisterReplica("C", "g", broker_id, f"h:{broker_id}", f"ha:{broker_id}", boot, epoch, safe)


def elect(alive: dict[int, Live], asked: int | None = None, **options: bool) -> ElectMaster:
    return ElectMaster("C", "g", alive, asked, **options)


def alter(
    machine: ReplicaMachine, members: tuple[int, ...], alive: tuple[int, ...] = (1, 2, 3), **wrong: int
) -> Outcome:
    group = machine.groups["g"]
    given = {"master": group.master, "master_epoch": group.master_epoch, "set_epoch": group.set_epoch, **wrong}
    return machine.apply(AlterSyncStateSet("g", members=members, alive=alive, **given))


def machine_with(*members: int, in_sync: tuple[int, ...] = ()) -> ReplicaMachine:
    """A group of these registered replicas; the first is master when a set is given."""
    machine = ReplicaMachine()
    for each in members:
        machine.apply(ApplyBrokerId("C", "g", each, f"code-{each}"))
        machine.apply(register(each))
    if in_sync:
        machine.apply(elect(live(*members), members[0]))
        if in_sync != (members[0],):
            assert alter(machine, in_sync).code == 0
    return machine
