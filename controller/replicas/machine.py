"""The replicated state machine of the broker groups: `apply(command) -> Outcome`, the same on every controller.

    command            checks, in order                                 on success
    ApplyBrokerId      cluster; id free or same check code; first is 1  id taken, next id behind it
    RegisterReplica    id taken                                         address, boot; a new boot voids, see below
    ElectMaster        see `election`                                   epoch above all known, set kept
    AlterSyncStateSet  is master; epoch; set's epoch; known; those      set, its epoch + 1
                       who join are alive; master in it
    CleanReplicas      known; none alive unless forced; the last one    forgotten; the last one ends the group
                       not of the group that has MQTT
    ChangeUsers        made for the present table                       another table of users and rules
    PlaceMqtt           made for the group that has MQTT now             MQTT is at another group

The same set again is taken too: its new epoch voids earlier requests of the master without an answer.
A new boot of the master ends its mastership, because it must never continue in its old epoch. A new boot that may lack
what it acknowledged leaves the set if others remain in it; else, unless it is the only replica there is, the group
waits for an operator.
Invariant: no command raises, a refusal changes nothing, `groups` is replaced and never changed, so any thread may
read it.
Pure and deterministic.

Who becomes master: the rules, in order, as a pure choice that changes nothing.

    no such group, or the requester never registered         refused
    no election yet             the requester, if it lives   no other may begin a history
    the master lives            it stays, unless another one is designated
    the last in sync may lack what it acknowledged           only a designated election is possible
    designated                  that one if it lives and is in sync, or none
    the master stops            alive, in sync and another than that one; with none it stays (`succession`)
    else                        alive and in sync, best log first: epoch, then end, then priority (lower), then id
    none, and unclean allowed   the same among all replicas  loses messages
Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import replace

from controller.replicas.group import (
    FIRST_BROKER_ID,
    AlterSyncStateSet,
    ApplyBrokerId,
    Barrier,
    ChangeUsers,
    CleanReplicas,
    Command,
    ElectMaster,
    Live,
    Outcome,
    PlaceMqtt,
    RegisterReplica,
    Replica,
    ReplicaGroup,
    check,
)
from remoting.access.agreement import USERS_MAX, AgreedTable
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode


@dataclass(frozen=True, slots=True)
class ElectionResult:
    """The choice, or why there is none: `vacant` when the group has no master that lives, `clean` when it was in
    sync."""

    master: int | None = None
    code: int = 0
    remark: str = ""
    vacant: bool = False
    clean: bool = True


def choose(group: ReplicaGroup, command: ElectMaster) -> ElectionResult:
    """Apply the rules to a group."""
    asked_by, live = command.broker_id, command.live
    if asked_by is not None and not _registered(group, asked_by):
        return ElectionResult(
            code=ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
            remark=f"broker {asked_by} of {group.name} must register before it can be elected",
        )
    if group.master_epoch == 0:
        return _first(group, command)
    if group.master in live and (not command.designated or asked_by in (None, group.master)):
        return ElectionResult(
            code=ResponseCode.CONTROLLER_MASTER_STILL_EXIST,
            remark=f"broker {group.master} is master of {group.name} and alive",
        )
    return _successor(group, command)


def succession(
    known: ReplicaGroup | None, cluster: str, group: str, leaving: int, live: Mapping[int, Live]
) -> ElectMaster:
    """The election of another master in place of one that is about to stop and still serves.

    Raises Refused when it is not the master, or no other broker in sync lives: then it stays until it is gone.
    """
    if known is None or known.master != leaving:
        raise Refused(ResponseCode.CONTROLLER_INVALID_MASTER, f"broker {leaving} is not the master of {group}")
    others = {each: state for each, state in live.items() if each != leaving}
    if not any(each in others and _registered(known, each) for each in known.in_sync):
        remark = f"no other broker of {group} that may be master is alive (in sync: {list(known.in_sync)})"
        raise Refused(ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE, remark)
    return ElectMaster(cluster, group, others)


def _registered(group: ReplicaGroup, broker_id: int) -> bool:
    replica = group.replicas.get(broker_id)
    return replica is not None and bool(replica.address)


def _first(group: ReplicaGroup, command: ElectMaster) -> ElectionResult:
    if command.broker_id is not None and command.broker_id in command.live:
        return ElectionResult(command.broker_id)
    return ElectionResult(
        code=ResponseCode.CONTROLLER_ELECT_MASTER_FAILED,
        remark=f"{group.name} never had a master: one of its brokers, alive, must ask to be it",
    )


def _successor(group: ReplicaGroup, command: ElectMaster) -> ElectionResult:
    vacant = group.master not in command.live
    if group.needs_operator and not (command.designated or command.unclean):
        return ElectionResult(
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
            return ElectionResult(min(candidates, key=lambda each: _rank(each, command.live[each])), clean=clean)
    return ElectionResult(
        code=ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE,
        remark=f"no broker of {group.name} that may be master is alive (in sync: {list(group.in_sync)})",
        vacant=vacant,
    )


def _rank(broker_id: int, live: Live) -> tuple[int, int, int, int]:
    return -live.epoch, -live.max_offset, live.priority, broker_id


GROUPS_MAX = 10_000
"""Broker groups; an id in one more is refused."""
REPLICAS_MAX = 64
"""Brokers of one group; one more is refused."""


class _WithUsers(msgspec.Struct, omit_defaults=True):
    """A snapshot where users were made or a group has MQTT; without any it is the list of groups alone."""

    groups: list[ReplicaGroup]
    users: AgreedTable
    mqtt_group: str = ""


class ReplicaMachine:
    """All broker groups, the users made by requests, and the one way to change them."""

    def __init__(self, groups: dict[str, ReplicaGroup] | None = None) -> None:
        self.groups: dict[str, ReplicaGroup] = groups or {}
        self.users = AgreedTable()
        """Users and rules made by requests; replaced, never changed."""
        self.mqtt_group = ""
        """The group that has MQTT; empty until it is decided."""
        self._steps: dict[type, Callable[[Any], Outcome]] = {
            ApplyBrokerId: self._apply_broker_id,
            RegisterReplica: self._register,
            ElectMaster: self._elect,
            AlterSyncStateSet: self._alter,
            CleanReplicas: self._clean,
            ChangeUsers: self._change_users,
            PlaceMqtt: self._place_mqtt,
            Barrier: lambda _command: Outcome(),
        }

    def apply(self, command: Command) -> Outcome:
        """Carry out one command."""
        return self._steps[type(command)](command)

    def next_broker_id(self, name: str) -> int:
        """The id a new broker of a group may apply for."""
        group = self.groups.get(name)
        return group.next_id if group is not None else FIRST_BROKER_ID

    def encode(self) -> bytes:
        """The whole state, for a snapshot; equal states give equal bytes."""
        groups = [self.groups[name] for name in sorted(self.groups)]
        is_plain = not self.users.version.origin and not self.mqtt_group
        return msgspec.msgpack.encode(groups if is_plain else _WithUsers(groups, self.users, self.mqtt_group))

    def restore(self, data: bytes) -> None:
        """Take over the state of a snapshot. Raises msgspec.MsgspecError, with nothing changed."""
        content = msgspec.msgpack.decode(data, type=list[ReplicaGroup] | _WithUsers)
        whole = content if isinstance(content, _WithUsers) else _WithUsers(content, AgreedTable())
        self.groups = {group.name: group for group in whole.groups}
        self.users, self.mqtt_group = whole.users, whole.mqtt_group

    def _place_mqtt(self, command: PlaceMqtt) -> Outcome:
        if self.mqtt_group != command.held:
            remark = f"MQTT is at {self.mqtt_group or 'no group'}, not at {command.held or 'none'}"
            return Outcome(ResponseCode.CONTROLLER_INVALID_REQUEST, remark)
        self.mqtt_group = command.group
        return Outcome()

    def _change_users(self, command: ChangeUsers) -> Outcome:
        change = command.change
        if not self.users.takes(change):
            return Outcome(ResponseCode.ACCESS_TABLE_CHANGED, "users and rules were changed meanwhile")
        after = self.users.after(change)
        if len(after.users) > USERS_MAX:
            return Outcome(ResponseCode.SYSTEM_BUSY, f"there are {USERS_MAX} users already")
        self.users = after
        return Outcome()

    def _put(self, group: ReplicaGroup, *, changed: bool = True) -> Outcome:
        check(group)
        self.groups = {**self.groups, group.name: group}
        return Outcome(view=group.view(), changed=changed)

    def _known(self, cluster: str, name: str) -> ReplicaGroup | Outcome:
        group = self.groups.get(name)
        if group is None:
            return Outcome(ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST, f"there is no broker group {name}")
        if cluster and group.cluster != cluster:
            remark = f"broker group {name} belongs to cluster {group.cluster}"
            return Outcome(ResponseCode.CONTROLLER_INVALID_REQUEST, remark, group.view())
        return group

    def _apply_broker_id(self, command: ApplyBrokerId) -> Outcome:
        known = self._known(command.cluster, command.group)
        if isinstance(known, Outcome):
            if known.view is not None:
                return known
            return self._first_broker_id(command)
        taken = known.replicas.get(command.broker_id)
        if taken is not None:
            if taken.check_code == command.check_code:
                return Outcome(view=known.view())
            remark = f"broker id {command.broker_id} of {command.group} is taken, the next free one is {known.next_id}"
            return Outcome(ResponseCode.CONTROLLER_BROKER_ID_INVALID, remark, known.view())
        if len(known.replicas) >= REPLICAS_MAX:
            remark = f"{command.group} has {REPLICAS_MAX} brokers already"
            return Outcome(ResponseCode.CONTROLLER_BROKER_ID_INVALID, remark, known.view())
        return self._take(known, command)

    def _first_broker_id(self, command: ApplyBrokerId) -> Outcome:
        if command.broker_id != FIRST_BROKER_ID:
            remark = f"the first broker of {command.group} has the id {FIRST_BROKER_ID}, not {command.broker_id}"
            return Outcome(ResponseCode.CONTROLLER_BROKER_ID_INVALID, remark)
        if len(self.groups) >= GROUPS_MAX:
            return Outcome(ResponseCode.CONTROLLER_BROKER_ID_INVALID, f"there are {GROUPS_MAX} broker groups already")
        return self._take(ReplicaGroup(command.cluster, command.group), command)

    def _take(self, group: ReplicaGroup, command: ApplyBrokerId) -> Outcome:
        replicas = {**group.replicas, command.broker_id: Replica(command.check_code)}
        next_id = max(group.next_id, command.broker_id + 1)
        return self._put(replace(group, replicas=replicas, next_id=next_id), changed=False)

    def _register(self, command: RegisterReplica) -> Outcome:
        group = self._known(command.cluster, command.group)
        if isinstance(group, Outcome):
            return group
        before = group.replicas.get(command.broker_id)
        if before is None:
            remark = f"broker id {command.broker_id} of {command.group} was never applied for"
            return Outcome(ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, remark, group.view())
        now = replace(before, address=command.address, ha_address=command.ha_address, boot_id=command.boot_id)
        replicas = {**group.replicas, command.broker_id: now}
        floor = max(group.epoch_floor, command.last_epoch)
        after = replace(group, replicas=replicas, epoch_floor=floor)
        if before.boot_id and command.boot_id != before.boot_id:
            after = _booted_again(after, command.broker_id, safe=command.safe)
        return self._put(after, changed=after.view() != group.view())

    def _elect(self, command: ElectMaster) -> Outcome:
        group = self._known(command.cluster, command.group)
        if isinstance(group, Outcome):
            return group
        choice = choose(group, command)
        if choice.master is not None:
            return self._put(_with_master(group, command, choice))
        if choice.vacant and group.master is not None:
            vacant = self._put(_without_master(group))
            return replace(vacant, code=choice.code, remark=choice.remark)
        return Outcome(choice.code, choice.remark, group.view())

    def _alter(self, command: AlterSyncStateSet) -> Outcome:
        group = self._known("", command.group)
        if isinstance(group, Outcome):
            return group
        members = tuple(sorted(set(command.members)))
        refusal = _alter_refusal(group, command, members)
        if refusal is not None:
            return Outcome(*refusal, group.view())
        return self._put(replace(group, in_sync=members, set_epoch=group.set_epoch + 1, needs_operator=False))

    def _clean(self, command: CleanReplicas) -> Outcome:
        group = self._known(command.cluster, command.group)
        if isinstance(group, Outcome):
            return group
        removed = set(command.broker_ids or group.replicas)
        alive = sorted(removed & set(command.alive))
        unknown = sorted(removed - set(group.replicas))
        if unknown or (alive and not command.forced):
            remark = f"broker ids {unknown} of {group.name} are not known" if unknown else f"{alive} are alive"
            return Outcome(ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA, remark, group.view())
        left = {broker_id: each for broker_id, each in group.replicas.items() if broker_id not in removed}
        if not left and group.name == self.mqtt_group:
            remark = f"MQTT is at {group.name}: move it before its last broker is removed, see lightmq cluster mqtt"
            return Outcome(ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA, remark, group.view())
        if not left:
            self.groups = {name: each for name, each in self.groups.items() if name != group.name}
            return Outcome(view=_without_master(replace(group, replicas={}, in_sync=())).view(), changed=True)
        if group.master in removed:
            group = _without_master(group)
        in_sync = tuple(each for each in group.in_sync if each not in removed)
        set_epoch = group.set_epoch + (in_sync != group.in_sync)
        return self._put(replace(group, replicas=left, in_sync=in_sync, set_epoch=set_epoch))


def _booted_again(group: ReplicaGroup, broker_id: int, *, safe: bool) -> ReplicaGroup:
    if group.master == broker_id:
        group = _without_master(group)
    if broker_id not in group.in_sync:
        # What it acknowledged before may be lost: a proposal that relies on that names an outdated set epoch.
        return replace(group, set_epoch=group.set_epoch + 1)
    if safe or len(group.replicas) == 1:
        return group
    others = tuple(each for each in group.in_sync if each != broker_id)
    if not others:
        return replace(group, needs_operator=True)
    return replace(group, in_sync=others, set_epoch=group.set_epoch + 1)


def _with_master(group: ReplicaGroup, command: ElectMaster, choice: ElectionResult) -> ReplicaGroup:
    assert choice.master is not None
    reported = max((live.epoch for live in command.live.values()), default=-1)
    inherited = choice.clean and choice.master in group.in_sync
    return replace(
        group,
        master=choice.master,
        master_epoch=max(group.master_epoch, group.epoch_floor, reported) + 1,
        set_epoch=group.set_epoch + 1,
        # Every member of the old set has all that was acknowledged; the new master removes those that do not follow.
        in_sync=group.in_sync if inherited else (choice.master,),
        needs_operator=False,
    )


def _without_master(group: ReplicaGroup) -> ReplicaGroup:
    return replace(group, master=None, master_epoch=group.master_epoch + 1)


def _alter_refusal(group: ReplicaGroup, command: AlterSyncStateSet, members: tuple[int, ...]) -> tuple[int, str] | None:
    unknown = [each for each in members if each not in group.replicas]
    # Who was in sync may stay: a replica that only the controllers cannot hear must not keep a dead one in the set.
    dead = [each for each in members if each not in command.alive and each not in group.in_sync]
    checks = (
        (
            command.master != group.master,
            ResponseCode.CONTROLLER_INVALID_MASTER,
            f"broker {command.master} is not the master, {group.master} is",
        ),
        (
            command.master_epoch != group.master_epoch,
            ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH,
            f"master epoch {command.master_epoch} is not {group.master_epoch}",
        ),
        (
            command.set_epoch != group.set_epoch,
            ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
            f"epoch {command.set_epoch} of the set is not {group.set_epoch}",
        ),
        (bool(unknown), ResponseCode.CONTROLLER_INVALID_REPLICAS, f"brokers {unknown} are not known"),
        (bool(dead), ResponseCode.CONTROLLER_BROKER_NOT_ALIVE, f"brokers {dead} are not alive"),
        (
            command.master not in members,
            ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
            f"the set {list(members)} lacks the master {command.master}",
        ),
    )
    return next(((code, f"{group.name}: {remark}") for failed, code, remark in checks if failed), None)
