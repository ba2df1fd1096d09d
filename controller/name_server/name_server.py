"""The name server at work: state, liveness, clock and file joined; every change of the state passes through here.

    {"format": 1, "metadata": {"groups": {...}, "topics": {...}, "key_values": {...}}}

is the file: replaced atomically, whole at every instant. `Persister` writes it soon after a change, many changes in one
write, and wakes the tasks that wait for it. `durable()` returns only when everything applied before the call is on
disk; a failed write is repeated for as long as the controller runs, and fails those that wait.
Invariant: an address is in the liveness table exactly while it is in the state. Loop rule: all on the loop's thread;
the state is encoded there and the file written in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeGuard

import msgspec

from controller.config import ControllerConfig
from controller.name_server import state
from remoting import background
from remoting.protocol.bodies.controller_body import TopicRoute
from remoting.protocol.errors import LocalMisuse, Refused
from remoting.protocol.frames.codes import ResponseCode
from runtime.clock import Clock
from runtime.files import atomic_replace
from runtime.logs import get_logger

FORMAT = 1
FILE_NAME = "metadata.json"


class _Content(msgspec.Struct):
    format: int
    metadata: msgspec.Raw


class MetadataFile:
    """The file of one data directory."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE_NAME

    def load(self) -> state.Metadata:
        """What was stored last, or empty metadata; LocalMisuse names what is wrong with the file and the remedy."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return state.Metadata()
        try:
            content = msgspec.json.decode(data, type=_Content)
            if content.format == FORMAT:
                return msgspec.json.decode(content.metadata, type=state.Metadata)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise LocalMisuse(
                f"{self.path} is damaged ({error}): put back a copy, or move it away - brokers register again by "
                f"themselves, only key-value entries and withdrawn write permissions are lost"
            ) from error
        raise LocalMisuse(
            f"{self.path} has format {content.format}, this version reads {FORMAT}: use the version that wrote it"
        )

    def save(self, data: bytes) -> None:
        """Replace the file's content durably. Raises OSError."""
        atomic_replace(self.path, data)


def encode_metadata(metadata: state.Metadata) -> bytes:
    """The file's content."""
    return msgspec.json.encode(_Content(FORMAT, msgspec.Raw(msgspec.json.encode(metadata))))


RETRY_SECONDS = 1.0
"""Pause after a write that failed."""


class Persister:
    """Writes one state to one file."""

    def __init__(self, state: state.MetadataState, file: MetadataFile, pause_ms: int) -> None:
        self._state = state
        self._file = file
        self._pause_seconds = pause_ms / 1000
        self._changed = asyncio.Event()
        self._written = state.revision
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None
        self._saving: asyncio.Future[None] | None = None
        """The write that is under way; its thread goes on when the task is cancelled."""
        self._log = get_logger("controller")
        self.writes = 0
        self.failures = 0

    async def start(self) -> None:
        """Begin to write changes."""
        self._task = background.task(self._run(), "writes the name server's settings")

    async def stop(self) -> None:
        """Write what is not written yet."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None
        if self._saving is not None:
            await asyncio.gather(self._saving, return_exceptions=True)
        if self._written != self._state.revision:
            await self._write()

    def changed(self) -> None:
        """The state may have changed."""
        if self._written != self._state.revision:
            self._changed.set()

    def has(self, revision: int) -> bool:
        """Whether the state of this revision is on disk."""
        return self._written >= revision

    async def durable(self) -> None:
        """Wait until the state as it is now is on disk; `Refused` when it cannot be written."""
        revision = self._state.revision
        if self._written >= revision:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((revision, future))
        self._changed.set()
        await future

    async def _run(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._written == self._state.revision:
                continue  # the write before took this change along
            if await self._write():
                await asyncio.sleep(self._pause_seconds)
            else:
                self._changed.set()
                await asyncio.sleep(RETRY_SECONDS)

    async def _write(self) -> bool:
        revision = self._state.revision
        data = encode_metadata(self._state.metadata)
        try:
            self._saving = asyncio.ensure_future(asyncio.to_thread(self._file.save, data))
            await asyncio.shield(self._saving)
        except OSError as error:
            self.failures += 1
            self._log.error("metadata_not_written", file=str(self._file.path), error=str(error))
            refusal = Refused(ResponseCode.SYSTEM_ERROR, f"the change is not on disk yet: {error}")
            for future in self._done_waiting(self._state.revision):
                future.set_exception(refusal)
            return False
        self.writes += 1
        self._written = revision
        for future in self._done_waiting(revision):
            future.set_result(None)
        return True

    def _done_waiting(self, revision: int) -> list[asyncio.Future[None]]:
        """Remove and return the live waiters for this revision or an earlier one."""
        done = [future for wanted, future in self._waiting if wanted <= revision and not future.done()]
        self._waiting = [(wanted, future) for wanted, future in self._waiting if wanted > revision]
        return done


ACTING_GRACE_MS_MIN = 2_000
"""A broker of a group in which a replica may stand in for the master is listed for at least so long after its last sign
of life: for so long each member believes in a list."""


class NameServer:
    """What request handlers and the ticker call."""

    def __init__(self, config: ControllerConfig, clock: Clock, file: MetadataFile) -> None:
        """Restore the metadata of `file`; brokers in it count as alive and have one time limit to show it."""
        self.config = config
        self._replicas: state.Replicas = state.no_replicas
        limits = state.MetadataLimits(config.brokers_max, config.topics_max, config.key_values_max)
        self.state = state.MetadataState(file.load(), limits)
        self.liveness = state.Liveness(config.broker_timeout_ms, config.liveness_scan_ms)
        self.persister = Persister(self.state, file, config.persist_pause_ms)
        self._clock = clock
        self._listeners: list[Callable[[], None]] = []
        self._member_listeners: list[Callable[[str], None]] = []
        self._log = get_logger("controller")
        for group in self.metadata.groups.values():
            for member in group.members.values():
                self.liveness.add((group.cluster, member.address), self.now_ms())

    @property
    def metadata(self) -> state.Metadata:
        """The state's content; to be read only."""
        return self.state.metadata

    def now_ms(self) -> int:
        """Milliseconds of the clock that never jumps."""
        return self._clock.monotonic_ns() // 1_000_000

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback()` after every change of the state."""
        self._listeners.append(callback)

    def on_members(self, callback: Callable[[str], None]) -> None:
        """Call `callback(broker_name)` after every change of the brokers that are alive in a group."""
        self._member_listeners.append(callback)

    def show_replicas(self, replicas: state.Replicas) -> None:
        """Let routes show these beside the brokers that register."""
        self._replicas = replicas

    def apply(self, change: state.Change) -> list[state.Event]:
        """Carry out a change; `Refused` with the reason when it cannot be."""
        revision = self.state.revision
        events = self.state.apply(change)
        self.persister.changed()
        if self.state.revision != revision:
            for listener in self._listeners:
                listener()
        for event in events:
            if isinstance(event, state.Rejected):
                self._log.warning("change_rejected", change=type(change).__name__, reason=event.remark)
                raise Refused(ResponseCode.SYSTEM_ERROR, event.remark)
            if isinstance(event, state.MemberLeft):
                self.liveness.forget((event.cluster, event.address))
                self._log.warning(
                    "broker_left",
                    broker=event.broker_name,
                    id=event.broker_id,
                    address=event.address,
                    reason=event.reason,
                )
        for name in dict.fromkeys(each.broker_name for each in events if _changes_members(each)):
            for tell in self._member_listeners:
                tell(name)
        return events

    def register(self, command: state.RegisterBroker, timeout_ms: int | None) -> None:
        """Put a broker into the routes and expect its heartbeats."""
        for event in self.apply(command):
            if isinstance(event, state.Registered):
                self.liveness.add((event.cluster, event.address), self.now_ms(), timeout_ms)
                if event.first:
                    self._log.info(
                        "broker_registered", broker=event.broker_name, id=event.broker_id, address=event.address
                    )
                    if command.enable_acting_master and self.config.broker_lost_grace_ms < ACTING_GRACE_MS_MIN:
                        self._log.warning(
                            "broker_lost_grace_short", broker=event.broker_name, grace_ms=ACTING_GRACE_MS_MIN,
                            reason="controller.broker_lost_grace_ms is shorter than a list of this group counts: two "
                            "replicas could stand in for its master at once, so it does not apply to this group",
                        )  # fmt: skip

    def beat(self, key: state.BrokerKey, timeout_ms: int | None = None) -> bool:
        """A broker shows that it lives; False when it must register first."""
        return self.liveness.beat(key, self.now_ms(), timeout_ms)

    def connection_lost(self, key: state.BrokerKey) -> None:
        """The connection on which a broker registered has ended."""
        self.liveness.shorten(key, self.now_ms(), self._grace_ms(key))

    def _grace_ms(self, key: state.BrokerKey) -> int:
        """How long a broker is listed after its connection broke."""
        cluster, address = key
        acting = (group for group in self.metadata.groups.values() if group.enable_acting_master)
        is_acting = any(
            group.cluster == cluster and address in (each.address for each in group.members.values())
            for group in acting
        )
        return max(self.config.broker_lost_grace_ms, ACTING_GRACE_MS_MIN if is_acting else 0)

    def tick(self) -> None:
        """Take brokers that were silent for too long out of the routes."""
        for cluster, address in self.liveness.tick(self.now_ms()):
            self.apply(state.RemoveMember(cluster, address, "it was silent for too long"))

    def topic_route(self, topic: str, *, as_configured: bool = False) -> TopicRoute | None:
        """Where the queues of a topic are; `as_configured` as in `state.topic_route`."""
        count = self.config.template_queue_count
        return state.topic_route(self.metadata, topic, count, self._replicas, as_configured=as_configured)


def _changes_members(event: state.Event) -> TypeGuard[state.Registered | state.MemberLeft]:
    return isinstance(event, state.MemberLeft) or (isinstance(event, state.Registered) and event.first)
