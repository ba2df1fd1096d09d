"""Consensus of several controllers with our own core: links, timers and callers of one event loop around `DledgerNode`.

Everything happens on the loop, files included: a decision of the controllers is a few hundred bytes and one fsync, and
a controller whose disk stands still must not answer anyway. What comes in one turn of the loop is written once.
Messages carry the core's types; the first on each connection says which commands this release knows. A file that cannot
be written, or a state that contradicts itself, ends the engine and with it the process: another controller takes over.
Invariant: a command is answered only after it is committed and applied here; one whose outcome this controller does not
learn within `propose_timeout_ms` ends in OutcomeUnknown. Loop rule: everything on the loop that calls `start`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from controller.consensus.dledger_node import DledgerNode, Fate
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
from controller.consensus.links import PeerLinks
from controller.consensus.members import ControllerNode
from controller.consensus.wire import COMMANDS_KNOWN, DLEDGER_MAGIC, stretch
from controller.raft.core import RaftTimers
from controller.raft.messages import REGULAR, RaftMessage, decode, encode
from remoting.protocol.errors import LightMQError, RemoteViolation
from runtime.files import make_directory
from runtime.logs import get_logger

TICKS_PER_HEARTBEAT = 4
PING_SECONDS = SILENCE_HEARTBEATS_MIN_MS / 5 / 1000
REMINDER_SECONDS = 10.0
"""How often a controller that must not vote yet logs why."""
INTRODUCTION = b"LMQC"
"""First bytes of the frame that begins a connection; the number of the commands known follows, 4 bytes big-endian."""


class DledgerEngine:
    """The engine of a controller with peers."""

    def __init__(
        self, directory: Path, machine: Machine, members: Mapping[str, ControllerNode], node_id: str, secret: bytes,
        settings: RaftSettings,
    ) -> None:  # fmt: skip
        self.node_id = node_id
        self._directory = directory
        self._machine = machine
        self._members = members
        self._settings = settings
        silence_ms = max(SILENCE_HEARTBEATS_MIN_MS, 3 * settings.election_ms)
        self._links = PeerLinks(
            members[node_id], members, stretch(secret), DLEDGER_MAGIC, self, silence_ms=silence_ms
        )  # fmt: skip
        self._node: DledgerNode | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._leadership: list[Callable[[bool], None]] = []
        self._led = False
        self._due = False
        self._failure: asyncio.Future[Exception] | None = None
        self._outdated = frozenset(members) - {node_id}
        self._log = get_logger("consensus")

    @property
    def is_leader(self) -> bool:
        """Whether this controller leads and has everything that was committed before."""
        return self._led

    @property
    def leader(self) -> str | None:
        """Node id of the leader as far as this controller knows."""
        return None if self._node is None else self._node.raft.leader

    @property
    def ready(self) -> bool:
        """Whether the controllers could continue if another one were lost."""
        return self._node is not None and self._node.raft.admitted and self.leader is not None

    @property
    def obstacle(self) -> str:
        """What keeps this controller from voting."""
        return "" if self._node is None else self._node.obstacle

    @property
    def outdated(self) -> frozenset[str]:
        """Members that have not told this controller that they know all commands of this release."""
        return self._outdated

    async def start(self) -> None:
        """Restore and take part. Raises LocalMisuse, OSError."""
        make_directory(self._directory)
        members = tuple(sorted(self._members))
        check_members(self._directory, members)
        settings, loop = self._settings, asyncio.get_running_loop()
        self._failure = loop.create_future()
        timers = RaftTimers(settings.heartbeat_ms / 1000, settings.election_ms / 1000, settings.fallback_ms / 1000)
        node = DledgerNode(
            self._directory, self.node_id, members, self._machine, timers, self._send, _random,
            snapshot_entries=settings.snapshot_entries,
        )  # fmt: skip
        try:
            await self._links.open(settings.host or self._members[self.node_id].host)
        except BaseException:
            node.close()
            raise
        self._node = node
        beats = timers.heartbeat / TICKS_PER_HEARTBEAT
        for seconds, act in ((beats, self._tick), (PING_SECONDS, self._links.tick), (REMINDER_SECONDS, self._remind)):
            self._tasks.append(loop.create_task(_every(seconds, act)))

    async def stop(self) -> None:
        """Leave; commands without an answer end in NotLeading."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        node, self._node = self._node, None
        self._show()
        await self._links.close()
        if node is not None:
            node.abandon()
            node.close()

    async def propose(self, data: bytes) -> object:
        """The machine's answer once the command is committed."""
        assert len(data) <= COMMAND_BYTES_MAX, len(data)
        return await self._ask(lambda node, done: node.propose(REGULAR + data, done))

    async def barrier(self) -> None:
        """Wait for a round of heartbeats: nobody else leads, and everything committed before is applied here."""
        await self._ask(lambda node, done: node.read(done))

    def on_leadership(self, callback: Callable[[bool], None]) -> None:
        """Call `callback(leading)` at every change."""
        self._leadership.append(callback)

    async def until_failed(self) -> Exception:
        """Wait for a file or a state that cannot be trusted."""
        assert self._failure is not None
        return await asyncio.shield(self._failure)

    def status(self) -> Mapping[str, object]:
        """Term, applied index, entries, snapshots and what keeps it from voting, for the status page."""
        node = self._node
        if node is None:
            return {}
        return {
            "term": node.raft.hard.term,
            "applied": node.applied,
            "log_entries": node.log_entries,
            "snapshots": node.snapshots,
            "refused_connections": self._links.violations,
            "obstacle": node.obstacle,
        }

    async def _ask(self, ask: Callable[[DledgerNode, Callable[[object, Fate], None]], None]) -> object:
        if not self._led:
            raise NotLeading(self.leader)
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._do(lambda node: ask(node, partial(self._answer, future)))
        try:
            async with asyncio.timeout(self._settings.propose_timeout_ms / 1000):
                return await future
        except TimeoutError:
            raise OutcomeUnknown("the controllers did not agree in time") from None

    def _answer(self, future: asyncio.Future[object], answer: object, fate: Fate) -> None:
        if future.done():
            return
        if fate is Fate.DONE:
            future.set_result(answer)
        elif fate is Fate.NOT_LEADING:
            future.set_exception(NotLeading(self.leader))
        else:
            future.set_exception(OutcomeUnknown("this controller lost the lead: the command's outcome is not known"))

    # ---- what the links and timers tell

    def connected(self, peer: str, *, connected: bool) -> None:
        """A member proved itself, or its connection is over."""
        if connected:
            self._links.send(peer, INTRODUCTION + COMMANDS_KNOWN.to_bytes(4, "big"))
        self._do(lambda node: node.connected(_now(), peer, connected=connected))

    def message(self, peer: str, data: bytes) -> None:
        """A frame of a member. Raises RemoteViolation."""
        if data.startswith(INTRODUCTION):
            older = int.from_bytes(data[len(INTRODUCTION) :], "big") < COMMANDS_KNOWN
            self._outdated = self._outdated | {peer} if older else self._outdated - {peer}
            return
        message = decode(data)
        self._do(lambda node: node.take(_now(), peer, message))

    def _tick(self) -> None:
        self._do(lambda node: node.tick(_now()))

    def _remind(self) -> None:
        if self.obstacle:
            self._log.warning("controller_waits", node=self.node_id, reason=self.obstacle)

    def _send(self, peer: str, message: RaftMessage) -> None:
        self._links.send(peer, encode(message))

    def _do(self, act: Callable[[DledgerNode], object]) -> None:
        node = self._node
        if node is None:
            return
        try:
            act(node)
        except RemoteViolation:
            raise
        except Exception as error:  # noqa: BLE001 - our own files or state: the engine must end, not this connection
            self._fail(node, error)
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._settle_all)

    def _settle_all(self) -> None:
        """Write once for everything that came in one turn."""
        self._due = False
        node = self._node
        if node is not None:
            try:
                node.settle()
            except Exception as error:  # noqa: BLE001 - see _do
                self._fail(node, error)
        self._show()

    def _show(self) -> None:
        leads = self._node is not None and self._node.leads
        if leads != self._led:
            self._led = leads
            for callback in self._leadership:
                callback(leads)

    def _fail(self, node: DledgerNode, error: Exception) -> None:
        """Nothing may be written or sent any more: the content of the files is not known."""
        self._log.error("consensus_failed", directory=str(self._directory), error=repr(error))
        failure = error
        if not isinstance(error, LightMQError):
            failure = ConsensusFailed(f"the controllers' log in {self._directory} cannot continue: {error!r}")
        assert self._failure is not None
        if not self._failure.done():
            self._failure.set_result(failure)
        self._node = None
        for task in self._tasks:
            task.cancel()
        node.abandon()
        asyncio.get_running_loop().create_task(self._links.close())


def _random() -> float:
    return secrets.randbits(32) / (1 << 32)


def _now() -> float:
    return asyncio.get_running_loop().time()


async def _every(seconds: float, act: Callable[[], object]) -> None:
    while True:
        await asyncio.sleep(seconds)
        act()
