"""Who becomes master: the rules, in order, as a pure choice that changes nothing.

    there is no such group, or who asks never registered     refused
    no election yet             who asks, if it lives        nobody else may begin a history
    the master lives            it stays, unless another one is designated
    the last in sync may lack what it acknowledged           only a designated election goes on
    designated                  that one if it lives and is in sync, or nobody
    else                        alive and in sync, best log first: epoch, then end, then priority (lower), then id
    nobody, and unclean allowed the same among all replicas  loses messages
Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from controller.replicas.commands import ElectMaster, Live
from controller.replicas.group import ReplicaGroup
from remoting.protocol.frames.codes import ResponseCode


@dataclass(frozen=True, slots=True)
class Choice:
    """Who was chosen, or why nobody was: `vacant` when the group has no master that lives, `clean` when it was in
    sync."""

    master: int | None = None
    code: int = 0
    remark: str = ""
    vacant: bool = False
    clean: bool = True


def choose(group: ReplicaGroup, command: ElectMaster) -> Choice:
    """Apply the rules to a group."""
    asked_by, live = command.broker_id, command.live
    if asked_by is not None and not _registered(group, asked_by):
        return Choice(
            code=ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
            remark=f"broker {asked_by} of {group.name} must register before it can be elected",
        )
    if group.master_epoch == 0:
        return _first(group, command)
    if group.master in live and (not command.designated or asked_by in (None, group.master)):
        return Choice(
            code=ResponseCode.CONTROLLER_MASTER_STILL_EXIST,
            remark=f"broker {group.master} is master of {group.name} and alive",
        )
    return _successor(group, command)


def _registered(group: ReplicaGroup, broker_id: int) -> bool:
    replica = group.replicas.get(broker_id)
    return replica is not None and bool(replica.address)


def _first(group: ReplicaGroup, command: ElectMaster) -> Choice:
    if command.broker_id is not None and command.broker_id in command.live:
        return Choice(command.broker_id)
    return Choice(
        code=ResponseCode.CONTROLLER_ELECT_MASTER_FAILED,
        remark=f"{group.name} never had a master: one of its brokers, alive, must ask to be it",
    )


def _successor(group: ReplicaGroup, command: ElectMaster) -> Choice:
    vacant = group.master not in command.live
    if group.needs_operator and not (command.designated or command.unclean):
        return Choice(
            code=ResponseCode.CONTROLLER_ELECT_MASTER_FAILED,
            remark=f"the last broker in sync of {group.name} was not stopped in order: an operator must designate one",
            vacant=vacant,
        )
    for members, clean in ((group.in_sync, True), (tuple(group.replicas), False)):
        if not clean and not command.unclean:
            break
        candidates = [each for each in members if each in command.live and _registered(group, each)]
        if command.designated:
            candidates = [each for each in candidates if each == command.broker_id]
        if candidates:
            return Choice(min(candidates, key=lambda each: _rank(each, command.live[each])), clean=clean)
    return Choice(
        code=ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE,
        remark=f"no broker of {group.name} that may be master is alive (in sync: {list(group.in_sync)})",
        vacant=vacant,
    )


def _rank(broker_id: int, live: Live) -> tuple[int, int, int, int]:
    return -live.epoch, -live.max_offset, live.priority, broker_id
