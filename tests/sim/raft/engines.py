"""The product's two consensus nodes behind the few names by which the simulation knows a node.

term, voted_for, is_leader, leads, votes, committed, applied, journal      what the judges look at
tick(), ask(command, done), ask_read(done), burst()                       what the world does; done(answer, granted)
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pysyncobj.syncobj
import pytest
from pysyncobj import FAIL_REASON

from controller.consensus import dledger_node, raft_node
from controller.consensus.dledger_engine import INTRODUCTION, REFUSAL
from controller.consensus.dledger_node import DledgerNode, Fate
from controller.consensus.journal import Journal
from controller.consensus.raft_node import NO_OP, RaftNode, Timers
from controller.consensus.roster import Introduction
from controller.consensus.wire import decode_message
from controller.raft import leading
from controller.raft.core import RaftTimers
from controller.raft.membership import Membership
from controller.raft.messages import RaftMessage, decode, encode
from tests.sim.raft.network import Network, NumberedNode, Wire

Answered = Callable[[object, bool], object]
TIMERS = Timers(0.04, 0.3, 1.0)
_introduction = msgspec.msgpack.Decoder(Introduction)


class LibraryNode(RaftNode):
    """PySyncObj's, as the product hardens it."""

    @property
    def term(self) -> int:
        return int(self.raftCurrentTerm)

    @property
    def voted_for(self) -> str | None:
        return self._face.getVotedForNodeId()

    @property
    def is_leader(self) -> bool:
        return bool(self._isLeader())

    @property
    def committed(self) -> int:
        return int(self.raftCommitIndex)

    @property
    def applied(self) -> int:
        return int(self.raftLastApplied)

    @property
    def journal(self) -> Journal:
        return self._face.journal

    def ask(self, command: bytes, done: Answered) -> None:
        self.propose(command, lambda answer, reason: done(answer, reason == FAIL_REASON.SUCCESS))

    def ask_read(self, done: Answered) -> None:
        self.ask(NO_OP, done)

    def burst(self) -> None:
        self.propose(NO_OP, lambda _answer, _reason: None)


class CoreNode(DledgerNode):
    """Ours."""

    def __init__(self, world: Any, directory: Path, wire: CoreWire, machine: Any) -> None:
        self._world = world
        self._wire = wire
        self._shown: tuple[Membership, Membership] | None = None
        wire.node = self
        timers = RaftTimers(TIMERS.heartbeat, TIMERS.election, TIMERS.fallback)
        super().__init__(
            directory, wire.node_id, wire.ids, machine, timers, wire.say, world.random.random,
            snapshot_entries=world.sizes.snapshot_entries, **world.who(wire.node_id),
        )  # fmt: skip

    @property
    def term(self) -> int:
        return self.raft.hard.term

    @property
    def voted_for(self) -> str | None:
        return self.raft.hard.voted_for

    @property
    def is_leader(self) -> bool:
        return self.raft.leading is not None

    @property
    def votes(self) -> bool:
        return self.raft.admitted

    @property
    def committed(self) -> int:
        return self.raft.log.committed

    @property
    def journal(self) -> Journal:
        return self._files.journal

    @property
    def identity(self) -> str:
        return self.roster.introduction.identity

    def settle(self) -> None:
        """As the engine does, end the connections of those whom the log names no more."""
        super().settle()
        shown = self.raft.members.current, self.roster.agreed
        if self._world.sizes.changing and shown != self._shown:
            self._shown = shown
            for peer in self._wire.connected:
                reason = self.roster.stranger(peer)
                if reason:
                    self._wire.refuse(peer, reason)

    def tick(self) -> None:  # type: ignore[override]
        super().tick(self._world.now)
        self.settle()

    def ask(self, command: bytes, done: Answered) -> None:
        self.propose(command, lambda answer, fate: done(answer, fate is Fate.DONE))
        self.settle()

    def ask_read(self, done: Answered) -> None:
        self.read(lambda answer, fate: done(answer, fate is Fate.DONE))
        self.settle()

    def burst(self) -> None:
        self.propose(NO_OP, lambda _answer, _fate: None)
        self.settle()


# ruff: noqa: N802


class CoreWire:
    """A node's connections; what it sends waits in the links."""

    def __init__(self, world: Any, network: Network, ids: tuple[str, ...], node_id: str) -> None:
        self.world = world
        self.network = network
        self.ids = ids
        self.node_id = node_id
        self.nodes = {each: NumberedNode(each) for each in world.ids}
        self.node: CoreNode | None = None
        self.on_say: Callable[[RaftMessage, str], None] = lambda _message, _peer: None

    def say(self, peer: str, message: RaftMessage) -> None:
        link = (self.node_id, peer)
        if link in self.network.up:
            self.on_say(message, peer)
            if link in self.network.links:
                self.network.links[link].append(encode(message))

    def take(self, sender: str, data: bytes) -> None:
        assert self.node is not None
        if data.startswith(INTRODUCTION):
            reason = self.node.introduced(sender, _introduction.decode(data[len(INTRODUCTION) :]))
            if reason:
                self.node.turned_away[sender] = reason
                self.refuse(sender, reason)
        elif data.startswith(REFUSAL):
            self.node.refused(sender, data[len(REFUSAL) :].decode())
            self.world.turned_away(self.node_id, sender)
            self.network.give_up(self.node_id, sender)
        else:
            self.node.take(self.world.now, sender, decode(data))
        self.node.settle()

    @property
    def connected(self) -> list[str]:
        return [each for each in self.nodes if (self.node_id, each) in self.network.up]

    def refuse(self, peer: str, reason: str) -> None:
        """A last frame, and the end of the connection."""
        if (self.node_id, peer) in self.network.links:
            self.network.links[self.node_id, peer].append(REFUSAL + reason.encode())
        self.world.turned_away(self.node_id, peer)
        self.network.give_up(self.node_id, peer)

    def _onNodeConnected(self, node: NumberedNode) -> None:
        assert self.node is not None
        if self.world.sizes.changing and (self.node_id, node.id) in self.network.links:
            said = msgspec.msgpack.encode(self.node.roster.introduction)
            self.network.links[self.node_id, node.id].append(INTRODUCTION + said)
        self.node.connected(self.world.now, node.id, connected=True)
        self.node.settle()

    def _onNodeDisconnected(self, node: NumberedNode) -> None:
        assert self.node is not None
        self.node.connected(self.world.now, node.id, connected=False)
        self.node.settle()


class Library:
    """PySyncObj's engine."""

    decode = staticmethod(decode_message)

    def wire(self, world: Any, node_id: str) -> Wire:
        return Wire(world.network, world.ids, node_id)

    def node(self, world: Any, directory: Path, wire: Wire, machine: Any) -> LibraryNode:
        return LibraryNode(directory, wire, machine, TIMERS, snapshot_entries=world.sizes.snapshot_entries)

    def patch(self, world: Any, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(pysyncobj.syncobj, "monotonicTime", world.read_clock)
        patch.setattr(raft_node, "monotonic", world.read_clock)
        patch.setattr(pysyncobj.syncobj.random, "random", world.random.random)
        patch.setattr(raft_node, "BATCH_BYTES", world.sizes.batch_bytes)
        patch.setattr(raft_node, "PIECE_BYTES", world.sizes.piece_bytes)

    def watch(self, world: Any, patch: pytest.MonkeyPatch) -> None:
        patch.setattr("controller.consensus.log_face.Journal", world.watched())
        patch.setattr(raft_node, "save", world.judged(raft_node.save))


class Core:
    """Our own engine."""

    @staticmethod
    def decode(data: bytes) -> object:
        return data if data.startswith((INTRODUCTION, REFUSAL)) else decode(data)

    def wire(self, world: Any, node_id: str) -> CoreWire:
        return CoreWire(world, world.network, world.configured[node_id], node_id)

    def node(self, world: Any, directory: Path, wire: CoreWire, machine: Any) -> CoreNode:
        return CoreNode(world, directory, wire, machine)

    def patch(self, world: Any, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(leading, "BATCH_BYTES", world.sizes.batch_bytes)
        patch.setattr(leading, "PIECE_BYTES", world.sizes.piece_bytes)

    def watch(self, world: Any, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(dledger_node, "Journal", world.watched())
        patch.setattr(dledger_node, "save", world.judged(dledger_node.save))


ENGINES: dict[str, Any] = {"pysyncobj": Library(), "dledger": Core()}
