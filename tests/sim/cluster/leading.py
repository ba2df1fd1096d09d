"""A broker as master: take messages, and carry out what the shipped `MasterTerm` decides.

Replicas are served by the shipped `ReplicaStreams`, over the simulated network and the model log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from broker.replication.leader import Leader, Proposal
from broker.replication.replica_streams import ReplicaStream, ReplicaStreams
from broker.roles.group_node import StaysMaster
from broker.roles.steps import ControllerAnswer, KnownGroup
from broker.roles.term import TermHandOver
from broker.store.errors import StoreFailed
from broker.store.state.state_kinds import StateChange
from controller.replicas.group import AlterSyncStateSet, GroupView
from remoting.protocol.frames.codes import ResponseCode
from tests.sim.cluster.asking import understood
from tests.sim.cluster.controllers import GROUP, NOT_LEADER
from tests.sim.cluster.network import Side, Stream

if TYPE_CHECKING:
    from tests.sim.cluster.broker import Broker

Answered = Callable[[bool], None]


class Leading:
    """One term as master."""

    def __init__(self, broker: Broker, core: Leader) -> None:
        self.broker, self.core = broker, core
        self._waiting: deque[tuple[int, Answered]] = deque()
        self.is_held = False
        """Whether it is being handed over: nothing new is begun."""
        assert broker.opened is not None
        self._opened = broker.opened
        self.term = broker.cluster.build.term(
            core, self._opened, broker.streams, broker.pauses, self, broker.host.log,
            interval_ms=broker.cluster.pace.check_ms,
        )  # fmt: skip
        self.ask_again = broker.asking.again
        self._hand_over: TermHandOver | None = None
        self._has_given_up = False
        self.barrier = broker.cluster.build.barrier(self, lambda seconds, then: broker.after(seconds * 1_000, then))

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

    def append_state(self, changes: Sequence[StateChange]) -> int:
        """Append a record of the broker's own."""
        return int(self._opened.append_state(changes))

    def when_confirmed(self, position: int, callback: Callable[[Exception | None], None]) -> None:
        """Call back once everything below it is confirmed."""
        if self.broker.log.confirm >= position:
            callback(None)
        elif self._has_given_up:
            callback(StoreFailed("given up"))
        else:
            self._waiting.append((position, lambda is_safe: callback(None if is_safe else StoreFailed("given up"))))

    def may_answer(self) -> bool:
        """Whether readers get answers."""
        return self.broker.pauses.may_answer()

    def propose(self, proposal: Proposal) -> None:
        """1001."""
        broker, core, term = self.broker, self.core, self.term

        def answered(code: int, view: GroupView | None, _named: str) -> None:
            if code == 0 and view is not None:
                answer = broker.asking.steps.altered(frozenset(view.in_sync), view.set_epoch)
            elif code == NOT_LEADER and "believes-former-leaders" in broker.flags:
                answer = ControllerAnswer(ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED)
            else:
                answer = understood(code, None)
            term.concluded(proposal, answer)

        command = AlterSyncStateSet(
            GROUP, broker.ident, core.epoch, proposal.base_epoch, tuple(sorted(proposal.members)), ()
        )
        broker.world.tell(broker.name, f"proposes {sorted(proposal.members)} at {proposal.base_epoch}")
        broker.asking.ask(command, answered)

    def doubt(self) -> None:
        """Readers ask before they get an answer."""

    def resign(self) -> None:
        """The log is damaged."""
        self.broker.lost_something()

    def stay(self) -> None:
        """The log is damaged, and no other broker is to be the master."""
        self.broker.roles.feed(StaysMaster())

    def hand_over(self, to: int | None = None) -> None:
        """Let another broker be the master in order."""
        build, limit_s = self.broker.cluster.build, self.broker.cluster.pace.answer_ms / 1_000
        self._hand_over = build.hand_over(self.term, self, to, limit_s=limit_s)
        self._hand_over.begin()

    def suspend(self) -> None:
        """Clients wait; what is sent here all the same is refused."""
        self.is_held = True
        self.broker.hold()
        self.broker.roles.pause()

    def settle(self, settled: Callable[[], None]) -> None:
        """What was taken is confirmed, or given up."""
        log = self.broker.log
        if log.confirm >= log.end:
            settled()
        else:
            self._waiting.append((log.end, lambda _is_safe: settled()))

    def seek(self, successor: int | None) -> None:
        """1002, or a summons."""
        self.broker.seek(successor)

    def taken(self, why_not: str = "") -> None:
        """Another broker is the master, or what was asked has failed."""
        if self._hand_over is not None:
            self._hand_over.over(why_not)

    def handed_over(self, why_not: str) -> None:
        """The process ends, or it goes on in the role that it has now."""
        broker = self.broker
        broker.world.tell(broker.name, f"has handed over, {why_not or 'well'}")
        self._hand_over = None
        if broker.is_leaving:
            broker.end(broker.boot)
            return
        broker.roles.resume()
        if broker.serving is self and broker.leads:
            self.is_held = False
            broker.release()

    @property
    def is_handing_over(self) -> bool:
        """Whether another broker is to be the master in its place."""
        return self._hand_over is not None

    def give_up(self) -> None:
        """Waiting clients do not learn what becomes of their messages."""
        is_taken = self.is_held and "acknowledges-what-it-hands-over" in self.broker.flags
        self._has_given_up = True
        waiting, self._waiting = self._waiting, deque()
        for _, answered in waiting:
            answered(is_taken)

    def begin(self, former: int | None) -> None:
        """Serve replicas, and have what the log has by now flushed."""
        self.term.begin(former)
        self.broker.flush()

    def learn(self, view: KnownGroup) -> None:
        """The controllers have committed a set."""
        self.term.learn(view)

    def end(self) -> None:
        """No longer master."""
        self.broker.world.tell(self.broker.name, f"resigns from epoch {self.core.epoch}")
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
