"""Consensus of several controllers with our own core: links, timers and callers of one event loop around `DledgerNode`.

Everything happens on the loop, files included: a decision of the controllers is a few hundred bytes and one fsync, and
a controller whose disk stands still must not answer anyway. What comes in one turn of the loop is written once.
Messages carry the core's types; the first on each connection says which commands this release knows and who the sender
is (`Introduction`); who is refused is told why by the last. A file that cannot be written, or a state that contradicts
itself, ends the engine and with it the process: another controller takes over.
Invariant: a command is answered only after it is committed and applied here; one whose outcome this controller does not
learn within `propose_timeout_ms` ends in OutcomeUnknown. Loop rule: everything on the loop that calls `start`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import msgspec
from msgspec.structs import astuple

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
from controller.consensus.roster import Introduction, MemberSeen
from controller.consensus.wire import COMMANDS_KNOWN, DLEDGER_MAGIC, stretch
from controller.raft.core import RaftTimers
from controller.raft.membership import MemberPlace, Membership
from controller.raft.messages import REGULAR, RaftMessage, decode, encode
from remoting import background, clock
from remoting.protocol.errors import LightMQError, Refused, RemoteViolation
from remoting.protocol.frames.codes import ResponseCode
from runtime.files import make_directory
from runtime.logs import get_logger

TICKS_PER_HEARTBEAT = 4
PING_SECONDS = SILENCE_HEARTBEATS_MIN_MS / 5 / 1000
HAND_OVER_S = 0.3
"""Longest time for which a leader that stops waits for its successor."""
REMINDER_SECONDS = 10.0
"""How often a controller that must not vote yet logs why."""
INTRODUCTION = b"LMQC"
"""First bytes of the frame that begins a connection; the number of the commands known follows, 4 bytes big-endian, and
the sender's `Introduction` in msgpack."""
INTRODUCTION_HEAD_BYTES = len(INTRODUCTION) + 4
REFUSAL = b"LMQX"
"""First bytes of the frame that ends a connection; the reason follows."""
REFUSAL_BYTES_MAX = 500
IDENTITY_BYTES = 8
_introduction = msgspec.msgpack.Decoder(Introduction)


class DledgerEngine:
    """The engine of a controller with peers."""

    def __init__(
        self, directory: Path, machine: Machine, members: dict[str, ControllerNode], node_id: str, secret: bytes,
        settings: RaftSettings,
    ) -> None:  # fmt: skip
        """`members` are the configured ones; the engine keeps the table as the log has it."""
        self.node_id = node_id
        self._directory = directory
        self._machine = machine
        self._members = members
        self._own = members[node_id]
        self._settings = settings
        silence_ms = max(SILENCE_HEARTBEATS_MIN_MS, 3 * settings.election_ms)
        self._links = PeerLinks(
            self._own, dict(members), stretch(secret), DLEDGER_MAGIC, self, silence_ms=silence_ms, judged=True
        )
        self._node: DledgerNode | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._leadership: list[Callable[[bool], None]] = []
        self._led = False
        self._due = False
        self._failure: asyncio.Future[Exception] | None = None
        self._current: set[str] = set()
        """Peers that know all commands of this release."""
        self._shown: tuple[Membership, Membership] | None = None
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
        return frozenset(self._members) - self._current - {self.node_id}

    async def start(self) -> None:
        """Restore and take part. Raises LocalMisuse, OSError."""
        make_directory(self._directory)
        members = tuple(sorted(self._members))
        places = {each.node_id: _place(each) for each in self._members.values()}
        settings, loop = self._settings, asyncio.get_running_loop()
        self._failure = loop.create_future()
        timers = RaftTimers(settings.heartbeat_ms / 1000, settings.election_ms / 1000, settings.fallback_ms / 1000)
        node = DledgerNode(
            self._directory, self.node_id, members, self._machine, timers, self._send, _random,
            snapshot_entries=settings.snapshot_entries, places=places, identity=secrets.token_hex(IDENTITY_BYTES),
        )  # fmt: skip
        try:
            if not node.raft.members.index:  # else the log says who they are
                check_members(self._directory, members)
            await self._links.open(settings.host or self._own.host)
        except BaseException:
            node.close()
            raise
        self._node = node
        self._follow_members(node)
        beats = timers.heartbeat / TICKS_PER_HEARTBEAT
        for seconds, act in ((beats, self._tick), (PING_SECONDS, self._links.tick), (REMINDER_SECONDS, self._remind)):
            self._tasks.append(background.task(_every(seconds, act), f"runs {act.__name__.strip('_')} of consensus"))

    async def stop(self) -> None:
        """Leave, and let another controller lead first; commands without an answer end in NotLeading."""
        await self._hand_over()
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

    async def _hand_over(self) -> None:
        """While this controller leads, let another voter do so: the others need not miss this one first."""
        node, connected = self._node, self._links.connected
        if node is None or not self._led or not set(connected) & set(node.raft.members.current.voters):
            return
        handed = asyncio.Event()
        self.on_leadership(lambda leads: None if leads else handed.set())
        self._do(lambda node: node.hand_over(_now(), connected))
        try:
            async with asyncio.timeout(HAND_OVER_S):
                await handed.wait()
        except TimeoutError:
            self._log.info("lead_not_handed_over", node=self.node_id)

    async def propose(self, data: bytes) -> object:
        """The machine's answer once the command is committed."""
        assert len(data) <= COMMAND_BYTES_MAX, len(data)
        return await self._ask(lambda node, done: node.propose(REGULAR + data, done))

    async def barrier(self) -> None:
        """Wait for a round of heartbeats: nobody else leads, and everything committed before is applied here."""
        await self._ask(lambda node, done: node.read(done))

    async def change(self, *, add: ControllerNode | None = None, remove: str = "") -> None:
        """Add a controller, which learns and votes once it has everything, or remove one.

        One that leads hands over instead, and the next leader is to be asked. Raises LocalMisuse, NotLeading,
        OutcomeUnknown, and Refused while another change is under way.
        """
        since = _now() - self._settings.fallback_ms / 1000
        if self._node is not None and self._led and remove == self.node_id:
            self._node.roster.removed(remove, since)
            raise NotLeading(self._node.hand_over(_now(), self._links.connected))
        if add is not None:
            place = _place(add)
            await self._change(lambda node: node.roster.added(place))
        else:
            await self._change(lambda node: node.roster.removed(remove, since))

    def seen(self) -> tuple[str, list[MemberSeen]]:
        """The group's identity, and its members as this controller sees them; the leader knows how far each is."""
        if self._node is None:
            return "", []
        since = _now() - self._settings.fallback_ms / 1000
        return self._node.roster.group, self._node.roster.seen(since)

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

    async def _change(self, make: Callable[[DledgerNode], Membership]) -> None:
        node = self._node
        if node is None or not self._led:
            raise NotLeading(self.leader)
        members = make(node)
        if not node.roster.idle:
            raise Refused(ResponseCode.SYSTEM_BUSY, "another change of the controllers is under way: ask again")
        await self._ask(lambda node, done: node.change(_now(), members, done))

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
        if connected and self._node is not None:
            said = msgspec.msgpack.encode(self._node.roster.introduction)
            self._links.send(peer, INTRODUCTION + COMMANDS_KNOWN.to_bytes(4, "big") + said)
        self._do(lambda node: node.connected(_now(), peer, connected=connected))

    def message(self, peer: str, data: bytes) -> None:
        """A frame of a member. Raises RemoteViolation."""
        if data.startswith(INTRODUCTION):
            self._introduced(peer, data)
            return
        if data.startswith(REFUSAL):
            self._refused(peer, data[len(REFUSAL) :][:REFUSAL_BYTES_MAX].decode(errors="replace"))
            return
        message = decode(data)
        self._do(lambda node: node.take(_now(), peer, message))

    def _introduced(self, peer: str, data: bytes) -> None:
        commands = int.from_bytes(data[len(INTRODUCTION) : INTRODUCTION_HEAD_BYTES], "big")
        self._current = self._current - {peer} if commands < COMMANDS_KNOWN else self._current | {peer}
        node, said = self._node, data[INTRODUCTION_HEAD_BYTES:]
        if node is None or not said:  # a release without identities says no more
            return
        try:
            introduction = _introduction.decode(said)
        except msgspec.MsgspecError as error:
            raise RemoteViolation(f"an introduction of a controller: {error}") from error
        reason = node.introduced(peer, introduction)
        if reason:
            node.turned_away[peer] = reason  # it may be this controller that is wrong here
            self._refuse(peer, reason)

    def _refuse(self, peer: str, reason: str) -> None:
        self._links.refuse(peer, REFUSAL + reason.encode()[:REFUSAL_BYTES_MAX], reason)

    def _refused(self, peer: str, reason: str) -> None:
        """A peer ends the connection and says why."""
        node = self._node
        if node is not None and node.turned_away.get(peer) != reason:
            self._log.warning("controller_refused_by", node=self.node_id, peer=peer, reason=reason)
        if node is not None:
            node.refused(peer, reason)
        self._links.refuse(peer, b"", reason)

    def _follow_members(self, node: DledgerNode) -> None:
        """Dial and show whom the log names; end the connections of those that it names no more."""
        current, agreed = node.raft.members.current, node.roster.agreed
        if (current, agreed) == self._shown:
            return
        self._shown = current, agreed
        if current.places:
            found = {each.node_id: ControllerNode(*astuple(each)[:4]) for each in node.roster.places.values()}
            self._members.clear()
            self._members.update(found)
            self._links.use(found)
        for peer in self._links.connected:
            reason = node.roster.stranger(peer)
            if reason:
                self._refuse(peer, reason)

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
                self._follow_members(node)
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


def _place(member: ControllerNode) -> MemberPlace:
    return MemberPlace(member.node_id, member.host, member.port, member.raft_port)


def _random() -> float:
    return secrets.randbits(32) / (1 << 32)


def _now() -> float:
    return clock.monotonic_s()


async def _every(seconds: float, act: Callable[[], object]) -> None:
    while True:
        await asyncio.sleep(seconds)
        act()
