"""What the controllers agree to do to the broker groups, as values and as bytes of the replicated log.

A command carries everything its outcome depends on, who is alive included, so that applying the same commands in the
same order gives the same state on every controller. On the log: msgpack, one tagged map per command.
Invariant: `decode` gives a command that passed its types, or raises RemoteViolation. Pure.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from controller.replicas.group import GroupView
from remoting.protocol.errors import RemoteViolation

Name = Annotated[str, Meta(min_length=1, max_length=255)]
BrokerId = Annotated[int, Meta(ge=1, le=2**31 - 1)]


class Live(msgspec.Struct, frozen=True):
    """What a live replica's last heartbeat said of its log."""

    epoch: int = -1
    max_offset: int = -1
    priority: int = 2**31 - 1
    """Lower wins between equal logs."""


class ApplyBrokerId(msgspec.Struct, frozen=True, tag=True):
    """Give an id to who proves itself by the check code."""

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
    """Choose a master among those alive; `broker_id` asks for itself or is designated, None: nobody does."""

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
    """Nothing: once it is applied, everything committed before it was asked for is applied too."""


Command = ApplyBrokerId | RegisterReplica | ElectMaster | AlterSyncStateSet | CleanReplicas | Barrier


class Outcome(msgspec.Struct, frozen=True):
    """What became of a command: a response code (0: done), why not, and the group as it is now."""

    code: int = 0
    remark: str = ""
    view: GroupView | None = None
    changed: bool = False
    """Whether brokers and clients have something to hear: master, epochs, set or addresses."""


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
