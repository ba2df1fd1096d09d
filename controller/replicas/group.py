"""What the controllers agree on about one broker group: its replicas, who is master, in which epoch, who is in sync.

Values are frozen and replaced as a whole, so that any thread may look at one while the next is made.
Invariant: a master is a known replica and in the SyncStateSet; ids are never given twice while the group lives; the
master epoch and the set's epoch never fall. Pure.
"""

from __future__ import annotations

import msgspec

FIRST_BROKER_ID = 1


class Replica(msgspec.Struct, frozen=True):
    """One broker of a group. `check_code` proves who took the id; the rest is empty until the broker registered."""

    check_code: str
    address: str = ""
    ha_address: str = ""
    boot_id: str = ""


class ReplicaGroup(msgspec.Struct, frozen=True):
    """One broker group."""

    cluster: str
    name: str
    replicas: dict[int, Replica] = {}
    next_id: int = FIRST_BROKER_ID
    master: int | None = None
    master_epoch: int = 0
    """0: there has never been an election."""
    set_epoch: int = 0
    in_sync: tuple[int, ...] = ()
    """The SyncStateSet, rising."""
    epoch_floor: int = 0
    """Highest epoch any replica's log was said to have; the next master's is above it."""
    needs_operator: bool = False
    """The last replica in sync may have lost what it acknowledged: only a designated election goes on."""

    def view(self) -> GroupView:
        """What brokers and clients are told of the group."""
        replica = self.replicas.get(self.master) if self.master is not None else None
        return GroupView(
            self.cluster,
            self.name,
            self.master,
            replica.address if replica is not None else "",
            replica.ha_address if replica is not None else "",
            self.master_epoch,
            self.set_epoch,
            self.in_sync,
            {broker_id: each.address for broker_id, each in self.replicas.items()},
        )


class GroupView(msgspec.Struct, frozen=True):
    """A group as answers and pushes show it; addresses are empty where there is no master."""

    cluster: str
    name: str
    master: int | None
    master_address: str
    master_ha_address: str
    master_epoch: int
    set_epoch: int
    in_sync: tuple[int, ...]
    addresses: dict[int, str]


def check(group: ReplicaGroup) -> None:
    """Our own bug when it fails: the rules every group obeys after every command."""
    assert group.master is None or group.master in group.in_sync, group
    assert set(group.in_sync) <= set(group.replicas), group
    assert list(group.in_sync) == sorted(set(group.in_sync)), group
    assert all(FIRST_BROKER_ID <= broker_id < group.next_id for broker_id in group.replicas), group
    assert group.master is None or group.master_epoch > 0, group
