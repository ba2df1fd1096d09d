"""The agreed state of one broker group, and the commands that change it, as values and as bytes of the replicated log.

A group has replicas, a master, an epoch and a SyncStateSet. Values are frozen and replaced as a whole, so that any
thread may read one while the next is made. A command carries everything its outcome depends on, the set of live
brokers included, so that applying the same commands in the same order gives the same state on every controller. On the
log: msgpack, one tagged map per command.
Invariant: a master is a known replica and in the SyncStateSet; ids are never assigned twice while the group exists; the
master epoch and the set's epoch never fall; `decode` returns a command of the declared types or raises
RemoteViolation. Pure.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from remoting.protocol.errors import RemoteViolation

FIRST_BROKER_ID = 1


class Replica(msgspec.Struct, frozen=True):
    """One broker of a group. `check_code` proves the owner of the id; the rest is empty until the broker registered."""

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
    """Highest epoch reported for any replica's log; the next master's is above it."""
    needs_operator: bool = False
    """The last replica in sync may have lost what it acknowledged: only a designated election goes on."""

    def view(self) -> GroupView:
        """The group as brokers and clients see it."""
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


Name = Annotated[str, Meta(min_length=1, max_length=255)]
BrokerId = Annotated[int, Meta(ge=1, le=2**31 - 1)]


class Live(msgspec.Struct, frozen=True):
    """The state of a live replica's log in its last heartbeat."""

    epoch: int = -1
    max_offset: int = -1
    priority: int = 2**31 - 1
    """Lower wins between equal logs."""


class ApplyBrokerId(msgspec.Struct, frozen=True, tag=True):
    """Assign an id to the broker that shows the check code."""

    cluster: Name
    group: Name
    broker_id: BrokerId
    check_code: Name


class RegisterReplica(msgspec.Struct, frozen=True, tag=True):
    """A replica is there, under this address, since this start of its process."""

    cluster: Name
    group: Name
    broker_id: BrokerId
    address: Name
    ha_address: str = ""
    boot_id: str = ""
    last_epoch: int = -1
    safe: bool = True
    """Nothing it acknowledged can be missing: it was stopped in order, or flushes before it acknowledges."""


class ElectMaster(msgspec.Struct, frozen=True, tag=True):
    """Choose a master among those alive; `broker_id` requests it for itself or is designated; None: neither."""

    cluster: str
    group: Name
    live: dict[int, Live]
    broker_id: int | None = None
    designated: bool = False
    unclean: bool = False
    """Whether a replica that is not in sync may be chosen when none that is lives; loses messages."""


class AlterSyncStateSet(msgspec.Struct, frozen=True, tag=True):
    """The master of an epoch changes its SyncStateSet from the one with this epoch."""

    group: Name
    master: int
    master_epoch: int
    set_epoch: int
    members: tuple[int, ...]
    alive: tuple[int, ...]


class CleanReplicas(msgspec.Struct, frozen=True, tag=True):
    """Forget replicas, all where no id is given; those alive only when forced."""

    cluster: str
    group: Name
    broker_ids: tuple[int, ...]
    alive: tuple[int, ...]
    forced: bool = False


class Barrier(msgspec.Struct, frozen=True, tag=True):
    """No change: once it is applied, everything committed before its request is applied too."""


Command = ApplyBrokerId | RegisterReplica | ElectMaster | AlterSyncStateSet | CleanReplicas | Barrier


class Outcome(msgspec.Struct, frozen=True):
    """What became of a command: a response code (0: done), why not, and the group as it is now."""

    code: int = 0
    remark: str = ""
    view: GroupView | None = None
    changed: bool = False
    """Whether it concerns brokers and clients: master, epochs, set or addresses."""


_decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)


def encode(command: Command) -> bytes:
    """The command as bytes of the log."""
    return msgspec.msgpack.encode(command)


def decode(data: bytes) -> Command:
    """The command in these bytes."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise RemoteViolation(f"no command of the controllers: {error}") from error
