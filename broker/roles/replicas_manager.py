"""Talks to the controllers for a member of a broker group, and carries role changes out one after the other.

    Controllers (answers, pushes) --> ReplicaSteps.update --> epoch on the disk --> GroupNode
    GROUP   {"crc": n, "state": {cluster, group, broker_id, check_code, is_applied, epoch, clean, machine_boot, flush}}

GROUP has the broker's id and the newest master epoch it knows of, and is replaced as a whole. The id is written before
it is applied for (`is_applied` false), so that a crash in between repeats the application with the same check code.
`clean`: the previous process stopped in order, with everything on the disk. `machine_boot` and `flush`: in which boot
of the machine, and how durably, the process that registered last wrote; what a killed process had written is still
there, unless the machine went down too. `term`, `voted_for`, `admitted` and `members` are those of `election_manager`.

Invariants: the epoch is durable before its role is taken. What
`save` was given is on the disk when it returns; a file that is not whole is refused, because a second broker under one
id would be worse than one that does not start. Loop rule: all on the loop's thread; the file blocks.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from broker.roles.group_node import StoodStill
from broker.roles.role_queue import RoleExecutor, RoleQueue
from broker.roles.steps import (
    Ask,
    ControllerAnswer,
    KnownGroup,
    PauseWatch,
    ReplicaSteps,
    pause_limit_ms,
)
from remoting import background, clock
from remoting.client.controllers import Controllers
from remoting.protocol.bodies.controller_body import (
    AlterSyncStateSetHeader,
    ApplyBrokerIdHeader,
    ElectMasterHeader,
    GroupHeader,
    Header,
    Heartbeat,
    MasterHeader,
    NextBrokerId,
    RegisterReplicaHeader,
    ReplicaInfoRequest,
    SyncStateData,
    SyncStateSetBody,
    decode_body,
    encode_body,
    from_fields,
    to_fields,
)
from remoting.protocol.errors import LightMQError, LocalMisuse, Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import Dial, Peer
from remoting.transport.failures import ConnectionLost, checked, refusal
from runtime.files import atomic_replace, make_directory

if TYPE_CHECKING:
    from broker.config import BrokerConfig


BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def machine_boot(source: Path = BOOT_ID) -> str:
    """The kernel's id of this boot; empty where there is none, so that nothing is assumed."""
    try:
        return source.read_text().strip()
    except OSError:
        return ""


FILE_NAME = "GROUP"


class SavedIdentity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What must survive a restart."""

    cluster: str
    group: str
    broker_id: int | None = None
    check_code: str = ""
    is_applied: bool = False
    epoch: int = 0
    clean: bool = False
    machine_boot: str = ""
    flush: str = ""
    term: int = 0
    voted_for: str = ""
    admitted: bool | None = None
    """Whether a member of a group without controllers votes; None in a directory that was never one of such a group."""
    members: str = ""


class _Stored(msgspec.Struct):
    crc: int
    state: msgspec.Raw


class IdentityFile:
    """The file in a data directory."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE_NAME

    def load(self, cluster: str, group: str) -> SavedIdentity:
        """What is there, or a new identity. Raises LocalMisuse for a damaged file and for another group's."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return SavedIdentity(cluster, group, check_code=secrets.token_hex(16))
        try:
            stored = msgspec.json.decode(data, type=_Stored)
            if zlib.crc32(stored.state) != stored.crc:
                raise LocalMisuse(f"{self.path} is damaged: its checksum is wrong{_REMEDY}")
            identity = msgspec.json.decode(stored.state, type=SavedIdentity)
        except msgspec.MsgspecError as error:
            raise LocalMisuse(f"{self.path} is damaged: {error}{_REMEDY}") from error
        if (identity.cluster, identity.group) != (cluster, group):
            raise LocalMisuse(
                f"this data belongs to broker {identity.broker_id} of {identity.cluster}/{identity.group}, "
                f"not of {cluster}/{group}: correct cluster_name and broker_name, or choose another data directory"
            )
        return identity

    def save(self, identity: SavedIdentity) -> None:
        """Replace the file. Raises OSError."""
        state = msgspec.json.encode(identity)
        make_directory(self.path.parent, mode=0o700)
        atomic_replace(self.path, msgspec.json.encode(_Stored(zlib.crc32(state), msgspec.Raw(state))))


_REMEDY = "; restore it from a backup, or remove the broker from its group and let it join with an empty directory"


class OwnIdentity:
    """This broker's identity, saved as it changes, and what the process before has left behind."""

    def __init__(self, config: BrokerConfig) -> None:
        """Read the file. Raises LocalMisuse as `IdentityFile.load`."""
        self._file = IdentityFile(config.data_directory)
        self.identity: SavedIdentity = self._file.load(config.cluster_name, config.broker_name)
        self._machine_boot = machine_boot()
        self._flush = config.store.flush
        same_machine = self._machine_boot != "" and self._machine_boot == self.identity.machine_boot
        self.was_clean = self.identity.clean or same_machine
        """Whether all that the process before had written is there: it stopped in order, or the machine ran on."""
        self.was_flushed = (self.identity.flush or self._flush) == "sync"
        """Whether it flushed what it acknowledged."""
        self.boot_id = secrets.token_hex(8)

    def save(self, **changes: object) -> None:
        """Change the identity; it is on the disk when this returns. Raises OSError."""
        changed = msgspec.structs.replace(self.identity, **changes)
        if changed != self.identity:
            self._file.save(changed)
            self.identity = changed

    def save_epoch(self, epoch: int) -> None:
        """Note that this epoch is known. Raises OSError."""
        self.save(epoch=epoch)

    def save_registered(self) -> None:
        """Note in which start of the machine, and how durably, the process writes that is registered now."""
        self.save(machine_boot=self._machine_boot, flush=self._flush)

    def lost_something(self) -> None:
        """The log was found damaged: to the controllers this is a new start that lost something."""
        self.was_clean = self.was_flushed = False
        self.boot_id = secrets.token_hex(8)


def refuse_foreign(identity: SavedIdentity) -> None:
    """Raises LocalMisuse when a broker of a group with controllers finds the directory of one without."""
    if identity.admitted is not None:
        raise LocalMisuse(
            'this directory belongs to a group that elects its master itself: set replication.mode = "dledger", or '
            "start with an empty one"
        )


STEP_S_MAX = 1.0
"""Longest sleep between two checks of what is due."""
VIEWED = (Ask.REGISTER, Ask.POLL, Ask.LEAVE)
"""Questions whose answers describe the group."""


class _Answers:
    """What is done with the controllers' answers; what is saved raises OSError."""

    def __init__(
        self,
        own: OwnIdentity,
        controllers: Controllers,
        pauses: PauseWatch,
        report: Callable[[KnownGroup], None],
        log: Any,
    ) -> None:
        self._own, self._controllers, self._pauses, self._log = own, controllers, pauses, log
        self.report = report
        self.leaving: asyncio.Future[ControllerAnswer] | None = None
        """Of a master that is about to stop."""

    def save_id(self, broker_id: int) -> None:
        self._own.save(broker_id=broker_id)

    def save_applied(self) -> None:
        self._own.save(is_applied=True)

    def save_registered(self) -> None:
        self._own.save_registered()
        self._log.info("registered_as_replica", id=self._own.identity.broker_id, controller=self._controllers.leader)

    def proved(self, view: KnownGroup, asked_ms: int) -> None:
        if self._pauses.confirmed(view.epoch, view.master, asked_ms):
            self._log.info("still_the_master", by="controllers", epoch=view.epoch)

    def left(self, answer: ControllerAnswer) -> None:
        if self.leaving is not None and not self.leaving.done():
            self.leaving.set_result(answer)


class ReplicasManager:
    """One broker towards its controllers."""

    def __init__(
        self,
        config: BrokerConfig,
        member: RoleExecutor,
        *,
        connect: Dial,
        addresses: Callable[[], tuple[str, str]],
        failed: Callable[[Exception], None],
        log: Any,
    ) -> None:
        """`addresses`: the broker's own, for clients and for replicas. `failed` gets the error of a role change."""
        self._config, self._settings = config, config.replication
        self._member = member
        self._addresses = addresses
        self._failed = failed
        self._log = log
        self.own = OwnIdentity(config)
        refuse_foreign(self.own.identity)
        self.steps = ReplicaSteps(
            self.own.identity.broker_id,
            is_applied=self.own.identity.is_applied,
            epoch=self.own.identity.epoch,
            is_learner=self._settings.learner,
            poll_interval_ms=self._settings.poll_interval_ms,
        )
        self.controllers = Controllers(config.controllers, connect, timeout_ms=self._settings.request_timeout_ms)
        self.controllers.on_push(self._pushed)
        self.queue = RoleQueue(member, self._beat_now, failed, log)
        limit_ms = pause_limit_ms(self._settings.heartbeat_interval_ms, self._settings.heartbeat_timeout_ms)
        self.pauses = PauseWatch(limit_ms, self._now, self._in_doubt)
        self._answers = _Answers(self.own, self.controllers, self.pauses, self._apply_view, log)
        self._woken = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    # -- start and stop ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start asking for a role."""
        if self.own.identity.clean:
            self.own.save(clean=False)
        self.controllers.start()
        self._tasks = [
            background.task(self._step(), "follows the controllers' decisions"),
            background.task(self.queue.run(), "carries out changes of role"),
            background.task(self._beat(), "sends heartbeats to the controllers"),
        ]

    async def stop(self) -> None:
        """Stop asking and changing roles; close the connections to the controllers."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        await self.controllers.stop()

    def stopped_clean(self) -> None:
        """Everything is on the disk: a restart need not be distrusted."""
        self.own.save(clean=True)

    def lost_something(self) -> None:
        """The log was found damaged: to the controllers this is a new start that lost something.

        They take this broker out of the replicas in sync, unless it is the last one, before it takes a role again.
        """
        self.own.lost_something()
        self.queue.drop()
        self.steps.lost_something(self._now())
        self._woken.set()

    # -- what members ask for ------------------------------------------------------------------------------------------

    async def alter(self, epoch: int, members: frozenset[int], set_epoch: int) -> ControllerAnswer:
        """Ask for another set of replicas in sync. Raises LightMQError when the outcome is unknown."""
        assert self.steps.broker_id is not None
        header = AlterSyncStateSetHeader(self._config.broker_name, self.steps.broker_id, epoch, _now_ms())
        body = encode_body(SyncStateSetBody(sorted(members), set_epoch))
        command = Command(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, fields=to_fields(header), body=body)
        answer = await self.controllers.ask(command)
        if answer.code != 0:
            return ControllerAnswer(answer.code, remark=refusal(answer).remark)
        decided = decode_body(answer.body, SyncStateSetBody)
        return self.steps.altered(frozenset(decided.sync_state_set), decided.sync_state_set_epoch)

    async def hand_over(self, _successor: int | None = None) -> None:
        """Have the controllers choose another master in place of this one, which `steps.view` names then.

        They are asked until they answer; the caller sets the limit. To be called while the queue is paused.
        Raises Refused with the leader's reason, ConnectionLost when no controller is connected.
        """
        if not self.controllers.reachable:
            raise ConnectionLost("no controller can be reached")
        self._answers.leaving = leaving = asyncio.get_running_loop().create_future()
        self.steps.leave(self._now())
        self._woken.set()
        answer = await leaving
        if answer.code:
            raise Refused(answer.code, answer.remark)

    async def knows_leader(self) -> bool:
        """Whether the leading controller is known; if not, it is searched for."""
        if not self.controllers.leader:
            self.ask_again()
        return bool(self.controllers.leader)

    async def group_size(self) -> int:
        """How many brokers the controllers know in this group. Raises LightMQError."""
        name = self._config.broker_name
        command = Command(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=msgspec.json.encode([name]))
        answer = checked(await self.controllers.ask(command))
        state = decode_body(answer.body, SyncStateData).replicas_info_table.get(name)
        return 0 if state is None else len(state.in_sync_replicas) + len(state.not_in_sync_replicas)

    def majority(self, _epoch: int) -> None:
        """No majority confirms here: the controllers keep the set of replicas that does."""
        return

    @property
    def is_counted(self) -> bool:
        """Whether copies here may count: always, the controllers say whose do."""
        return True

    def asked(self, _peer: Peer, command: Command) -> Command:
        """No member of a group with controllers votes. Raises Refused."""
        raise Refused(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            f"request {command.code}: this group has controllers; replication.mode must be the same on all members",
        )

    def fenced_below(self, epoch: int) -> int:
        """The epoch that a replica tells the master of `epoch`."""
        return epoch

    def status(self) -> dict[str, Any]:
        """For the status page."""
        return {"mode": "controller"}

    def ask_again(self) -> None:
        """There may be another master: ask now."""
        self.steps.ask_now(self._now())
        self._woken.set()

    def pushed(self, command: Command) -> None:
        """A controller's push with the master (1008), over any connection."""
        self._pushed(command)

    # -- questions -----------------------------------------------------------------------------------------------------

    def _now(self) -> int:
        return clock.monotonic_ns() // 1_000_000

    async def _step(self) -> None:
        while True:
            ask = self.steps.next_ask(self._now())
            if ask is None:
                pause_s = min(max((self.steps.due_ms - self._now()) / 1_000, 0.001), STEP_S_MAX)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._woken.wait()
                self._woken.clear()
                continue
            try:
                answer = await self._ask(ask)
            except LightMQError as error:
                self._log.info("controllers_not_reached", question=ask.value, error=str(error))
                answer = ControllerAnswer(None)
            try:
                is_granted = self.steps.concluded(answer, self._now(), self._answers)
            except OSError as error:  # what the controllers rely on cannot be written
                self._failed(error)
                raise
            if not is_granted:
                self._log.info("controller_refused", question=ask.value, code=answer.code, remark=answer.remark)

    async def _ask(self, ask: Ask) -> ControllerAnswer:
        """Carry a question to the leading controller, and its answer back. Raises LightMQError without one."""
        if ask is Ask.LEADER:
            return await self._find_leader()
        code, header = self._question(ask)
        answer = await self.controllers.ask(Command(code, fields=to_fields(header)))
        if answer.code != 0:
            return ControllerAnswer(answer.code, remark=refusal(answer).remark)
        if ask is Ask.NEXT_ID:
            return ControllerAnswer(0, broker_id=from_fields(answer.fields, NextBrokerId).next_broker_id)
        return ControllerAnswer(0, view_of(answer) if ask in VIEWED else None)

    async def _find_leader(self) -> ControllerAnswer:
        former = self.controllers.leader
        if not await self.controllers.find_leader():
            return ControllerAnswer(None)
        if self.controllers.leader != former:
            self._log.info("controller_leads", address=self.controllers.leader)
        return ControllerAnswer(0)

    def _question(self, ask: Ask) -> tuple[int, Header]:
        """The request that asks it."""
        group = (self._config.cluster_name, self._config.broker_name)
        broker_id = self.steps.broker_id
        if ask is Ask.NEXT_ID:
            return RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, GroupHeader(*group)
        assert broker_id is not None
        match ask:
            case Ask.APPLY_ID:
                header: Header = ApplyBrokerIdHeader(*group, broker_id, self.own.identity.check_code)
                return RequestCode.CONTROLLER_APPLY_BROKER_ID, header
            case Ask.REGISTER:
                return RequestCode.CONTROLLER_REGISTER_BROKER, self._registration(broker_id)
            case Ask.HEARTBEAT:
                return RequestCode.BROKER_HEARTBEAT, self._beat_header()
            case Ask.ELECT:
                return RequestCode.CONTROLLER_ELECT_MASTER, ElectMasterHeader(*group, broker_id, invoke_time=_now_ms())
            case Ask.LEAVE:
                header = ElectMasterHeader(*group, broker_id, invoke_time=_now_ms(), leaves=True)
                return RequestCode.CONTROLLER_ELECT_MASTER, header
        return RequestCode.CONTROLLER_GET_REPLICA_INFO, ReplicaInfoRequest(self._config.broker_name)

    def _registration(self, broker_id: int) -> RegisterReplicaHeader:
        config, own, state = self._config, self.own, self._member.log_state()
        address, ha_address = self._addresses()
        return RegisterReplicaHeader(
            config.cluster_name, config.broker_name, broker_id, address, _now_ms(), ha_address, state.epoch, state.end,
            own.boot_id, own.was_clean, own.was_flushed,
        )  # fmt: skip

    # -- heartbeats ----------------------------------------------------------------------------------------------------

    def _beat_header(self) -> Heartbeat:
        state, settings = self._member.log_state(), self._settings
        assert self.steps.broker_id is not None
        return Heartbeat(
            self._config.cluster_name,
            self._config.broker_name,
            self._addresses()[0],
            self.steps.broker_id,
            state.epoch,
            state.end,
            state.confirm,
            settings.heartbeat_timeout_ms,
            settings.priority,
            settings.replica_reads,
        )

    def _in_doubt(self, paused_ms: int) -> None:
        self._log.warning("stood_still", paused_ms=paused_ms, epoch=self.steps.epoch)
        self.queue.feed(StoodStill())
        self.ask_again()

    async def _beat(self) -> None:
        while True:
            self._beat_now()
            await asyncio.sleep(self._settings.heartbeat_interval_ms / 1_000)

    def _beat_now(self) -> None:
        try:
            self.controllers.call_all(self._heartbeat, self._beaten)
        except LightMQError as error:
            self._log.info("heartbeat_not_sent", error=str(error))

    def _heartbeat(self) -> Command | None:
        self.pauses.may_answer()  # replicas check too: a message that makes one the master may be out of date
        if not self.steps.may_beat:
            return None
        return Command(RequestCode.BROKER_HEARTBEAT, fields=to_fields(self._beat_header()))

    def _beaten(self, address: str, answer: Command | None) -> None:
        if answer is not None and address == self.controllers.leader:
            self.steps.beaten(answer.code, self._now())
            self._woken.set()

    # -- roles ---------------------------------------------------------------------------------------------------------

    def _pushed(self, command: Command) -> None:
        if command.code != RequestCode.NOTIFY_BROKER_ROLE_CHANGED:
            return
        header = from_fields(command.fields, MasterHeader)
        if header.broker_name not in (None, self._config.broker_name):
            return
        try:
            self._apply_view(view_of(command))
        except OSError as error:  # as in `_step`: the epoch of a new role cannot be written
            self._failed(error)
            raise

    def _apply_view(self, view: KnownGroup) -> None:
        self.queue.report(self.steps, view, self.own.save_epoch)
        self._woken.set()


def view_of(command: Command) -> KnownGroup:
    """The group as an answer to 1003 or 1004, or a push, describes it. Raises RemoteViolation."""
    header = from_fields(command.fields, MasterHeader)
    body = decode_body(command.body, SyncStateSetBody) if command.body else SyncStateSetBody()
    master = header.master_broker_id if header.master_broker_id is not None and header.master_broker_id > 0 else None
    return KnownGroup(
        header.master_epoch,
        master,
        header.master_address or "",
        header.master_ha_address or "",
        frozenset(body.sync_state_set),
        max(body.sync_state_set_epoch, header.sync_state_set_epoch),
    )


def _now_ms() -> int:
    return clock.now_ms()
