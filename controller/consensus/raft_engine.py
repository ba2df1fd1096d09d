"""Consensus of several controllers: the Raft node on a thread of its own, seen from the controller's loop.

The thread runs a loop with the node's sockets and timers; commands and answers cross by `call_soon_threadsafe`. A file
that cannot be written, or a state that contradicts itself, ends the engine and with it the process: another controller
leads on.
Invariant: an answer is given only for what is committed and applied here; commands whose fate this controller cannot
know within `propose_timeout_ms` end in OutcomeUnknown. Loop rule: the public face belongs to the loop that calls
`start`, everything below `_main` to the thread's.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pysyncobj import FAIL_REASON

from controller.consensus.engine import COMMAND_BYTES_MAX, ConsensusFailed, Machine, NotLeading, OutcomeUnknown
from controller.consensus.members import ControllerNode
from controller.consensus.peers import PeerTransport
from controller.consensus.raft_node import NO_OP, RaftNode, Timers
from controller.consensus.single import REGULAR, check_members
from controller.consensus.wire import stretch
from remoting.protocol.errors import LightMQError
from runtime.files import make_directory
from runtime.logs import get_logger

TICKS_PER_HEARTBEAT = 4
PINGS_PER_SILENCE = 5
SILENCE_HEARTBEATS_MIN_MS = 1_000
"""Shortest silence after which a connection between controllers is given up."""


@dataclass(frozen=True, slots=True)
class RaftSettings:
    """How an engine works; times in milliseconds."""

    heartbeat_ms: int = 40
    election_ms: int = 300
    fallback_ms: int = 1_000
    propose_timeout_ms: int = 3_000
    snapshot_entries: int = 5_000
    host: str = ""
    """Address to listen on; empty: the member's own."""


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """What the thread last said of itself."""

    leads: bool = False
    leader: str | None = None
    term: int = 0
    applied: int = 0
    log_entries: int = 0
    snapshots: int = 0
    refused_connections: int = 0
    votes: bool = False


Done = Callable[[object, int], None]


class RaftEngine:
    """The engine of a controller with peers."""

    def __init__(
        self, directory: Path, machine: Machine, members: Mapping[str, ControllerNode], node_id: str, secret: bytes,
        settings: RaftSettings,
    ) -> None:  # fmt: skip
        self.node_id = node_id
        self._directory = directory
        self._machine = machine
        self._members = members
        self._secret = secret
        self._settings = settings
        self._view = EngineStatus()
        self._leadership: list[Callable[[bool], None]] = []
        self._log = get_logger("consensus")
        self._thread: threading.Thread | None = None
        self._home: asyncio.AbstractEventLoop | None = None
        self._away: asyncio.AbstractEventLoop | None = None
        self._started: asyncio.Future[None] | None = None
        self._ended: asyncio.Future[None] | None = None
        self._failure: asyncio.Future[Exception] | None = None
        # Below: the thread's own.
        self._node: RaftNode | None = None
        self._transport: PeerTransport | None = None
        self._stop = asyncio.Event()
        self._failed: Exception | None = None
        self._tick_due = False

    @property
    def is_leader(self) -> bool:
        """As the thread last said."""
        return self._view.leads

    @property
    def leader(self) -> str | None:
        """As the thread last said."""
        return self._view.leader

    @property
    def ready(self) -> bool:
        """Whether the loss of another controller would find this one able to go on."""
        return self._view.votes and self._view.leader is not None

    async def start(self) -> None:
        """Restore and take part. Raises LocalMisuse, OSError."""
        self._home = asyncio.get_running_loop()
        self._started, self._ended, self._failure = (self._home.create_future() for _ in range(3))
        make_directory(self._directory)
        check_members(self._directory, tuple(sorted(self._members)))
        self._thread = threading.Thread(target=self._run, name="consensus", daemon=True)
        self._thread.start()
        await self._started

    async def stop(self) -> None:
        """Leave; commands without an answer end in NotLeading."""
        if self._away is None or self._ended is None:
            return
        if not self._ended.done():
            self._away.call_soon_threadsafe(self._stop.set)
            await self._ended
        self._show(EngineStatus(term=self._view.term))

    async def propose(self, data: bytes) -> object:
        """The machine's answer once the command is committed."""
        assert len(data) <= COMMAND_BYTES_MAX, len(data)
        return await self._ask(REGULAR + data)

    async def barrier(self) -> None:
        """Commit an entry without content: whoever can is the leader, and has everything from before it."""
        await self._ask(NO_OP)

    def on_leadership(self, callback: Callable[[bool], None]) -> None:
        """Called on the loop that started the engine."""
        self._leadership.append(callback)

    async def until_failed(self) -> Exception:
        """Wait for a file or a state that cannot be trusted."""
        assert self._failure is not None
        return await asyncio.shield(self._failure)

    def status(self) -> Mapping[str, object]:
        """Term, applied index, entries and snapshots for the status page."""
        view = self._view
        return {
            "term": view.term,
            "applied": view.applied,
            "log_entries": view.log_entries,
            "snapshots": view.snapshots,
            "refused_connections": view.refused_connections,
        }

    async def _ask(self, command: bytes) -> object:
        if not self._view.leads or self._home is None or self._away is None:
            raise NotLeading(self._view.leader)
        future: asyncio.Future[object] = self._home.create_future()
        self._away.call_soon_threadsafe(self._propose, command, partial(self._answer, future))
        try:
            async with asyncio.timeout(self._settings.propose_timeout_ms / 1000):
                return await future
        except TimeoutError:
            raise OutcomeUnknown("the controllers did not agree in time") from None

    def _answer(self, future: asyncio.Future[object], result: object, reason: int) -> None:
        """On the thread: bring an answer home."""
        assert self._home is not None
        self._home.call_soon_threadsafe(self._settle, future, result, reason)

    def _settle(self, future: asyncio.Future[object], result: object, reason: int) -> None:
        if future.done():
            return
        if reason == FAIL_REASON.SUCCESS:
            future.set_result(result)
        elif reason in (FAIL_REASON.NOT_LEADER, FAIL_REASON.MISSING_LEADER, FAIL_REASON.REQUEST_DENIED):
            future.set_exception(NotLeading(self._view.leader))
        else:
            future.set_exception(OutcomeUnknown(f"the command's fate is not known (reason {reason})"))

    def _show(self, view: EngineStatus) -> None:
        before, self._view = self._view, view
        if before.leads != view.leads:
            for callback in self._leadership:
                callback(view.leads)

    def _finished(self, error: Exception | None) -> None:
        """At home: the thread is over."""
        assert self._started is not None
        assert self._ended is not None
        assert self._failure is not None
        self._show(EngineStatus(term=self._view.term))
        self._ended.set_result(None)
        if error is None:
            return
        if not self._started.done():
            self._started.set_exception(error)
        else:
            self._log.error("consensus_failed", directory=str(self._directory), error=repr(error))
            failure = ConsensusFailed(f"the controllers' log in {self._directory} cannot go on: {error!r}")
            self._failure.set_result(failure)

    # ---- the thread

    def _run(self) -> None:
        assert self._home is not None
        error: Exception | None = None
        try:
            asyncio.run(self._main())
        except Exception as caught:  # noqa: BLE001 - whatever it is, the controller must hear of it
            error = caught
        self._home.call_soon_threadsafe(self._finished, error or self._failed)

    async def _main(self) -> None:
        assert self._home is not None
        assert self._started is not None
        self._away = asyncio.get_running_loop()
        settings, own = self._settings, self._members[self.node_id]
        transport = self._transport = PeerTransport(
            own,
            self._members,
            stretch(self._secret),
            silence_ms=max(SILENCE_HEARTBEATS_MIN_MS, 3 * settings.election_ms),
            received=self._tick_soon,
            failed=self._fail,
        )
        timers = Timers(settings.heartbeat_ms / 1000, settings.election_ms / 1000, settings.fallback_ms / 1000)
        node = RaftNode(self._directory, transport, self._machine, timers, snapshot_entries=settings.snapshot_entries)
        try:
            await transport.open(settings.host or own.host)
            self._node = node
            self._home.call_soon_threadsafe(self._started.set_result, None)
            pings = asyncio.get_running_loop().create_task(self._ping(transport))
            while not self._stop.is_set():
                self._tick()
                await asyncio.sleep(timers.heartbeat / TICKS_PER_HEARTBEAT)
            pings.cancel()
        finally:
            await transport.close()
            if self._failed is None:
                node.close()

    async def _ping(self, transport: PeerTransport) -> None:
        while True:
            await asyncio.sleep(SILENCE_HEARTBEATS_MIN_MS / PINGS_PER_SILENCE / 1000)
            transport.tick()

    def _propose(self, command: bytes, done: Done) -> None:
        if self._node is None or self._stop.is_set():
            done(None, FAIL_REASON.NOT_LEADER)
        else:
            self._node.propose(command, done)
            self._tick_soon()

    def _tick_soon(self) -> None:
        """Once for everything that comes in one turn."""
        if not self._tick_due and self._away is not None:
            self._tick_due = True
            self._away.call_soon(self._tick)

    def _tick(self) -> None:
        self._tick_due = False
        if self._node is None or self._stop.is_set():
            return
        try:
            self._node.tick()
        except Exception as error:  # noqa: BLE001 - see _fail
            self._fail(error)
        else:
            self._tell_home(self._node)

    def _tell_home(self, node: RaftNode) -> None:
        assert self._home is not None
        assert self._transport is not None
        refused = self._transport.violations
        entries = node.log_entries
        view = EngineStatus(
            node.leads, node.leader_id, node.raftCurrentTerm, node.raftLastApplied, entries, node.snapshots, refused,
            node.votes,
        )  # fmt: skip
        if view != self._view:
            self._home.call_soon_threadsafe(self._show, view)

    def _fail(self, error: Exception) -> None:
        """Nothing may be written or said any more: what the files hold is not known."""
        if self._failed is None:
            self._failed = error if isinstance(error, LightMQError) else ConsensusFailed(repr(error))
            self._node = None
            self._stop.set()
