"""A broker as master: take messages, wait for the replicas, ask the controllers for another SyncStateSet.

Replicas are served by the shipped `ReplicaStreams`, over the simulated network and the model log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.replication.leader import Leader
from broker.replication.replica_streams import ReplicaStream, ReplicaStreams
from broker.roles.term import MasterTerm
from tests.sim.cluster.network import Side, Stream

if TYPE_CHECKING:
    from tests.sim.cluster.broker import Broker

CHECK_TICKS = 2
Answered = Callable[[bool], None]


class Leading:
    """One term as master."""

    def __init__(self, broker: Broker, core: Leader) -> None:
        self.broker, self.core = broker, core
        self._waiting: deque[tuple[int, Answered]] = deque()
        self._ticks = 0
        self.is_held = False
        """Whether it is being handed over: nothing new is begun."""
        assert broker.opened is not None
        self._opened = broker.opened
        self.term = MasterTerm(
            core, self._opened, broker.streams, broker.pauses, broker.host.log, doubtful=lambda: None
        )
        self.in_sync = self.term.in_sync

    def append(self, queue: int, ident: int, answered: Answered) -> None:
        """Append a message; `answered` tells whether it is safe now."""
        broker, core = self.broker, self.core
        if self.is_held or not core.accepts(int(broker.world.now)):
            answered(False)
            return
        offset, start, end = broker.log.append(queue, ident, core.epoch)

        def taken(is_safe: bool) -> None:
            if is_safe:
                broker.cluster.judge.acknowledged(ident, queue, offset, broker, start, end)
            answered(is_safe)

        if "acknowledges-at-write" in broker.flags:
            taken(True)
        else:
            self._waiting.append((end, taken))
        self._opened.wrote()

    def confirmed(self) -> None:
        """More is confirmed: answer."""
        log, waiting = self.broker.log, self._waiting
        confirm = log.confirm
        if "counts-own-unflushed" in self.broker.flags and log.limit:
            confirm = min(log.limit, log.end)
        while waiting and waiting[0][0] <= confirm:
            waiting.popleft()[1](True)

    def may_answer(self) -> bool:
        """Whether readers get answers."""
        return self.broker.pauses.may_answer()

    def tick(self) -> None:
        """Whether it may answer, and which replicas are in sync."""
        if self.broker.pauses.tick():
            self.broker.world.tell(self.broker.name, "answers again, by its members")
        self._ticks += 1
        if self._ticks % CHECK_TICKS == 0:
            proposal = self.in_sync.check(self._opened.kept)
            if proposal is not None:
                self.broker.propose(self, proposal)
            self.broker.streams.confirm()

    def give_up(self) -> None:
        """Waiting clients do not learn what becomes of their messages."""
        is_taken = self.is_held and "acknowledges-what-it-hands-over" in self.broker.flags
        for _, answered in self._waiting:
            answered(is_taken)
        self._waiting.clear()

    def close(self) -> None:
        """No longer master."""
        self.term.end()


class ReplicaSide(Side):
    """The master's end of a replica's connection: what a socket is in the product."""

    def __init__(self, broker: Broker, stream: Stream) -> None:
        self._broker, self._network_stream = broker, stream
        streams: ReplicaStreams = broker.streams
        self._stream: ReplicaStream | None = streams.opened(self, stream.nodes[0].name, is_near=True)

    def on_data(self, data: bytes) -> None:
        if self._stream is not None:
            self._stream.received(data)

    def on_closed(self) -> None:
        if self._stream is not None:
            self._stream.ended("closed by the replica")

    def send(self, head: bytes, data: bytes | memoryview = b"") -> None:
        """Bytes for the replica."""
        self._network_stream.send(1, head + bytes(data))

    def close(self) -> None:
        """Close from here; the stream learns of it after the present turn."""
        if self._network_stream.open[1]:
            self._network_stream.close(1)
            self._broker.after(0, self.on_closed)

    abort = close
