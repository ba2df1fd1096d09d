"""Consensus of several controllers: the Raft node on a thread of its own, driven from the controller's loop.

    RaftEngine (controller's loop) ──propose, stop──▶ RaftThread (loop of its own: sockets, timers, RaftNode)
                                   ◀──answers, status──

Commands and answers cross by `call_soon_threadsafe`. A file that cannot be written, or a state that contradicts itself,
ends the engine and with it the process: another controller takes over.
Invariant: a command is answered only after it is committed and applied here; one whose outcome this controller does not
learn within `propose_timeout_ms` ends in OutcomeUnknown. Loop rule: `RaftEngine` belongs to the loop that calls
`start`; of `RaftThread` only `start`, `stop` and `propose` are called from there.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from pysyncobj import FAIL_REASON

from controller.consensus.engine import (
    COMMAND_BYTES_MAX,
    SILENCE_HEARTBEATS_MIN_MS,
    ConsensusFailed,
    Machine,
    NotLeading,
    OutcomeUnknown,
    RaftSettings,
    check_members,
)
from controller.consensus.members import ControllerNode
from controller.consensus.peers import PeerTransport
from controller.consensus.raft_node import NO_OP, RaftNode, Timers
from controller.consensus.wire import stretch
from controller.raft.messages import REGULAR
from remoting import background
from remoting.protocol.errors import LightMQError
from runtime.files import make_directory
from runtime.logs import get_logger

TICKS_PER_HEARTBEAT = 4
PINGS_PER_SILENCE = 5
REMINDER_SECONDS = 10.0
"""How often a controller that must not vote yet logs why."""


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """The state of consensus as the thread last reported it."""

    leads: bool = False
    leader: str | None = None
    term: int = 0
    applied: int = 0
    log_entries: int = 0
    snapshots: int = 0
    refused_connections: int = 0
    votes: bool = False
    obstacle: str = ""
    """What keeps the node from voting."""
    outdated: frozenset[str] = frozenset()
    """Members that may not know all commands of this release."""


Done = Callable[[object, int], object]


class ThreadListener(Protocol):
    """What a `RaftThread` reports, on the loop that started it."""

    def show(self, status: EngineStatus) -> None:
        """The state has changed."""

    def started(self) -> None:
        """The node takes part."""

    def finished(self, error: Exception | None) -> None:
        """The thread has ended; called once, with the reason when it was not `stop`."""


class RaftThread:
    """A thread with the Raft node, its sockets and its timers."""

    def __init__(
        self, directory: Path, machine: Machine, members: Mapping[str, ControllerNode], node_id: str, secret: bytes,
        settings: RaftSettings,
    ) -> None:  # fmt: skip
        self._directory = directory
        self._machine = machine
        self._members = members
        self._own = members[node_id]
        self._secret = secret
        self._settings = settings
        self._post: Callable[..., object] = lambda *_: None
        self._listener: ThreadListener | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._node: RaftNode | None = None
        self._transport: PeerTransport | None = None
        self._stop = asyncio.Event()
        self._failed: Exception | None = None
        self._tick_due = False
        self._status = EngineStatus()

    def start(self, home: asyncio.AbstractEventLoop, listener: ThreadListener) -> None:
        """Begin; `listener` is called on the loop `home`."""
        self._post, self._listener = home.call_soon_threadsafe, listener
        threading.Thread(target=self._run, name="consensus", daemon=True).start()

    def stop(self) -> None:
        """Have the thread end; returns at once."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)

    def propose(self, command: bytes, done: Done) -> None:
        """Append a command; `done(result, reason)` is called on the home loop."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._propose, command, partial(self._post, done))

    # ---- on the thread

    def _run(self) -> None:
        assert self._listener is not None
        error: Exception | None = None
        try:
            asyncio.run(self._main(self._listener))
        except Exception as caught:  # noqa: BLE001 - whatever it is, the controller must end with it
            error = caught
        self._post(self._listener.finished, error or self._failed)

    async def _main(self, listener: ThreadListener) -> None:
        self._loop = asyncio.get_running_loop()
        settings = self._settings
        transport = self._transport = PeerTransport(
            self._own,
            self._members,
            stretch(self._secret),
            silence_ms=max(SILENCE_HEARTBEATS_MIN_MS, 3 * settings.election_ms),
            received=self._tick_soon,
            failed=self._fail,
        )
        timers = Timers(settings.heartbeat_ms / 1000, settings.election_ms / 1000, settings.fallback_ms / 1000)
        node = RaftNode(self._directory, transport, self._machine, timers, snapshot_entries=settings.snapshot_entries)
        try:
            await transport.links.open(settings.host or self._own.host)
            self._node = node
            self._post(listener.started)
            tasks = [
                background.task(self._ping(transport), "pings the other controllers"),
                background.task(self._remind(node), "says what the controller waits for"),
            ]
            while not self._stop.is_set():
                self._tick()
                await asyncio.sleep(timers.heartbeat / TICKS_PER_HEARTBEAT)
            for task in tasks:
                task.cancel()
        finally:
            await transport.links.close()
            if self._failed is None:
                node.close()

    async def _ping(self, transport: PeerTransport) -> None:
        while True:
            await asyncio.sleep(SILENCE_HEARTBEATS_MIN_MS / PINGS_PER_SILENCE / 1000)
            transport.links.tick()

    async def _remind(self, node: RaftNode) -> None:
        log = get_logger("consensus")
        while True:
            await asyncio.sleep(REMINDER_SECONDS)
            if node.obstacle:
                log.warning("controller_waits", node=self._own.node_id, reason=node.obstacle)

    def _propose(self, command: bytes, done: Done) -> None:
        if self._node is None or self._stop.is_set():
            done(None, FAIL_REASON.NOT_LEADER)
        else:
            self._node.propose(command, done)
            self._tick_soon()

    def _tick_soon(self) -> None:
        """One tick for everything that arrives in one turn."""
        if not self._tick_due and self._loop is not None:
            self._tick_due = True
            self._loop.call_soon(self._tick)

    def _tick(self) -> None:
        self._tick_due = False
        if self._node is None or self._stop.is_set():
            return
        try:
            self._node.tick()
        except Exception as error:  # noqa: BLE001 - see _fail
            self._fail(error)
        else:
            self._report(self._node)

    def _report(self, node: RaftNode) -> None:
        assert self._transport is not None
        assert self._listener is not None
        status = EngineStatus(
            node.leads, node.leader_id, node.raftCurrentTerm, node.raftLastApplied, node.log_entries, node.snapshots,
            self._transport.links.violations, node.votes, node.obstacle, self._transport.outdated,
        )  # fmt: skip
        if status != self._status:
            self._status = status
            self._post(self._listener.show, status)

    def _fail(self, error: Exception) -> None:
        """Nothing may be written or sent any more: the content of the files is not known."""
        if self._failed is None:
            self._failed = error if isinstance(error, LightMQError) else ConsensusFailed(repr(error))
            self._node = None
            self._stop.set()


class RaftEngine:
    """The engine of a controller with peers."""

    def __init__(
        self, directory: Path, machine: Machine, members: Mapping[str, ControllerNode], node_id: str, secret: bytes,
        settings: RaftSettings,
    ) -> None:  # fmt: skip
        self.node_id = node_id
        self._directory = directory
        self._member_ids = tuple(sorted(members))
        self._propose_timeout_s = settings.propose_timeout_ms / 1000
        self._thread = RaftThread(directory, machine, members, node_id, secret, settings)
        self._status = EngineStatus()
        self._leadership: list[Callable[[bool], None]] = []
        self._log = get_logger("consensus")
        self._started: asyncio.Future[None] | None = None
        self._ended: asyncio.Future[None] | None = None
        self._failure: asyncio.Future[Exception] | None = None

    @property
    def is_leader(self) -> bool:
        """Whether this controller led when the thread last reported."""
        return self._status.leads

    @property
    def leader(self) -> str | None:
        """Node id of the leader when the thread last reported."""
        return self._status.leader

    @property
    def ready(self) -> bool:
        """Whether the controllers could continue if another one were lost."""
        return self._status.votes and self._status.leader is not None

    @property
    def obstacle(self) -> str:
        """What keeps this controller from voting when the thread last reported."""
        return self._status.obstacle

    @property
    def outdated(self) -> frozenset[str]:
        """Members that have not told this controller that they know all commands of this release."""
        return self._status.outdated

    async def start(self) -> None:
        """Restore and take part. Raises LocalMisuse, OSError."""
        make_directory(self._directory)
        check_members(self._directory, self._member_ids)
        home = asyncio.get_running_loop()
        self._started, self._ended, self._failure = (home.create_future() for _ in range(3))
        self._thread.start(home, self)
        await self._started

    async def stop(self) -> None:
        """Leave; commands without an answer end in NotLeading."""
        if self._ended is None:
            return
        if not self._ended.done():
            self._thread.stop()
            await self._ended
        self.show(EngineStatus(term=self._status.term))

    async def propose(self, data: bytes) -> object:
        """The machine's answer once the command is committed."""
        assert len(data) <= COMMAND_BYTES_MAX, len(data)
        return await self._ask(REGULAR + data)

    async def barrier(self) -> None:
        """Commit an entry without content: only the leader can, and it has everything committed before it."""
        await self._ask(NO_OP)

    def on_leadership(self, callback: Callable[[bool], None]) -> None:
        """Call `callback(leading)` at every change, on the loop that started the engine."""
        self._leadership.append(callback)

    async def until_failed(self) -> Exception:
        """Wait for a file or a state that cannot be trusted."""
        assert self._failure is not None
        return await asyncio.shield(self._failure)

    def status(self) -> Mapping[str, object]:
        """Term, applied index, entries, snapshots and what keeps it from voting, for the status page."""
        status = self._status
        return {
            "term": status.term,
            "applied": status.applied,
            "log_entries": status.log_entries,
            "snapshots": status.snapshots,
            "refused_connections": status.refused_connections,
            "obstacle": status.obstacle,
        }

    async def _ask(self, command: bytes) -> object:
        if not self._status.leads:
            raise NotLeading(self._status.leader)
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._thread.propose(command, partial(self._settle, future))
        try:
            async with asyncio.timeout(self._propose_timeout_s):
                return await future
        except TimeoutError:
            raise OutcomeUnknown("the controllers did not agree in time") from None

    def _settle(self, future: asyncio.Future[object], result: object, reason: int) -> None:
        if future.done():
            return
        if reason == FAIL_REASON.SUCCESS:
            future.set_result(result)
        elif reason in (FAIL_REASON.NOT_LEADER, FAIL_REASON.MISSING_LEADER, FAIL_REASON.REQUEST_DENIED):
            future.set_exception(NotLeading(self._status.leader))
        else:
            future.set_exception(OutcomeUnknown(f"the command's outcome is not known (reason {reason})"))

    # ---- what the thread reports

    def show(self, status: EngineStatus) -> None:
        """Take over a new state, and announce a change of leadership."""
        before, self._status = self._status, status
        if before.leads != status.leads:
            for callback in self._leadership:
                callback(status.leads)

    def started(self) -> None:
        """The node takes part."""
        assert self._started is not None
        self._started.set_result(None)

    def finished(self, error: Exception | None) -> None:
        """The thread has ended, with the reason when it was not `stop`."""
        assert self._started is not None
        assert self._ended is not None
        assert self._failure is not None
        self.show(EngineStatus(term=self._status.term))
        self._ended.set_result(None)
        if error is None:
            return
        if not self._started.done():
            self._started.set_exception(error)
        else:
            self._log.error("consensus_failed", directory=str(self._directory), error=repr(error))
            failure = ConsensusFailed(f"the controllers' log in {self._directory} cannot continue: {error!r}")
            self._failure.set_result(failure)
