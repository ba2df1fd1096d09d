"""A broker as master: serve its replicas, wait for them, ask the controllers for another SyncStateSet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.replication.frames import (
    FROM_REPLICA,
    NO_PROOF,
    Ack,
    Decoder,
    Frame,
    Greeting,
    Hello,
    Ready,
    Refusal,
    Transfer,
    encode_greeting,
    encode_refusal,
    encode_transfer_head,
    encode_welcome,
)
from broker.replication.leader import Leader, expired
from broker.replication.replica_streams import PAUSE_S
from remoting.protocol.errors import RemoteViolation
from tests.sim.cluster.network import Side, Stream

if TYPE_CHECKING:
    from controller.replicas.group import GroupView
    from tests.sim.cluster.broker import Broker

CHECK_TICKS = 2
PAUSE_MS = PAUSE_S * 1_000
Answered = Callable[[bool], None]


class Leading:
    """One term as master."""

    def __init__(self, broker: Broker, core: Leader) -> None:
        self.broker, self.core = broker, core
        self.sides: dict[int, ReplicaSide] = {}
        broker.pauses.lead(core, self._in_doubt)
        self._waiting: deque[tuple[int, Answered]] = deque()
        self._next = 0
        self._ticks = 0
        self._is_pausing = False
        self.is_open = True

    def accept(self, stream: Stream) -> ReplicaSide:
        """Accept a replica's connection and greet it."""
        self._next += 1
        side = self.sides[self._next] = ReplicaSide(self, self._next, stream)
        stream.send(1, encode_greeting(Greeting(bytes(16))))
        return side

    def append(self, queue: int, ident: int, answered: Answered) -> None:
        """Append a message; `answered` tells whether it is safe now."""
        broker, core = self.broker, self.core
        if not core.accepts(int(broker.world.now)):
            answered(False)
            return
        offset, end = broker.log.append(queue, ident, core.epoch)
        start = broker.log.starts[-1]

        def taken(is_safe: bool) -> None:
            if is_safe:
                broker.cluster.judge.acknowledged(ident, queue, offset, broker, start, end)
            answered(is_safe)

        if "acknowledges-at-write" in broker.flags:
            taken(True)
        else:
            self._waiting.append((end, taken))
        for side in list(self.sides.values()):
            side.pump()
        if broker.log.is_async:
            self.update()
        broker.flush()

    def update(self) -> None:
        """Positions moved: confirm, answer, show."""
        log = self.broker.log
        own = log.end if "counts-own-unflushed" in self.broker.flags else log.kept
        log.limit = self.core.limit(own)
        log.settle()
        waiting = self._waiting
        confirm = min(log.limit, own) if "counts-own-unflushed" in self.broker.flags and log.limit else log.confirm
        while waiting and waiting[0][0] <= confirm:
            waiting.popleft()[1](True)
        self.broker.cluster.judge.shown(self.broker)

    def may_answer(self) -> bool:
        """Whether readers get answers."""
        return self.broker.pauses.may_answer()

    def _in_doubt(self) -> None:
        for connection in list(self.sides):
            self.drop(connection)

    def tick(self) -> None:
        """Heartbeats, silence, whether it may answer, and which replicas are in sync."""
        now_ms = int(self.broker.world.now)
        if self.broker.pauses.tick():
            self.broker.world.tell(self.broker.name, "answers again, by its members")
        for connection in self.core.silent(now_ms):
            self.drop(connection)
        for connection in self.core.heartbeats_due(now_ms):
            self.sides[connection].heartbeat()
        self._ticks += 1
        if self._ticks % CHECK_TICKS == 0:
            proposal = self.core.check(self.broker.log.kept, now_ms)
            if proposal is not None:
                self.broker.propose(self, proposal)

    def learn(self, view: GroupView) -> None:
        """The controllers committed a set, perhaps a known one."""
        if self.core.learn(view.in_sync, view.set_epoch, int(self.broker.world.now)):
            self.drop_strangers()

    def drop_strangers(self) -> None:
        """End the connections of replicas that no longer count."""
        for other in [each for each, side in self.sides.items() if side.is_greeted and not self.core.knows(each)]:
            self.drop(other)

    def pause(self) -> None:
        """Send little after a while only."""
        if not self._is_pausing:
            self._is_pausing = True
            self.broker.after(PAUSE_MS, self._paused)

    def _paused(self) -> None:
        self._is_pausing = False
        if self.is_open:
            for side in list(self.sides.values()):
                side.pump(has_paused=True)

    def drop(self, connection: int) -> None:
        """End a replica's connection."""
        self.core.disconnected(connection, int(self.broker.world.now))
        side = self.sides.pop(connection, None)
        if side is not None:
            side.stream.close(1)

    def close(self) -> None:
        """No longer master: waiting clients are refused."""
        self.is_open = False
        self.broker.pauses.lead(None)
        for connection in list(self.sides):
            self.drop(connection)
        for _, answered in self._waiting:
            answered(False)
        self._waiting.clear()


class ReplicaSide(Side):
    """The master's end of a replica's connection."""

    def __init__(self, leading: Leading, connection: int, stream: Stream) -> None:
        self._leading = leading
        self._connection = connection
        self.stream = stream
        self._decoder = Decoder(FROM_REPLICA)

    def on_closed(self) -> None:
        self._leading.drop(self._connection)

    def on_data(self, data: bytes) -> None:
        leading = self._leading
        if not leading.is_open:
            return
        try:
            for frame in self._decoder.feed(data):
                refusal = self._take(frame)
                if refusal is not None:
                    self._refuse(refusal)
                    return
        except RemoteViolation as violation:
            leading.broker.world.tell(leading.broker.name, f"ends a connection: {violation.reason}")
            leading.drop(self._connection)
            return
        self.is_greeted = True
        leading.drop_strangers()
        self.pump()
        leading.update()

    def _take(self, frame: Frame) -> Refusal | None:
        core, log = self._leading.core, self._leading.broker.log
        now_ms = int(self._leading.broker.world.now)
        if isinstance(frame, Hello):
            answer = core.hello(self._connection, frame, log.extent(), now_ms)
            if isinstance(answer, Refusal):
                return answer
            self.stream.send(1, encode_welcome(answer, lambda _: NO_PROOF))
        elif isinstance(frame, Ready):
            return core.ready(self._connection, frame, log.extent(), now_ms)
        elif isinstance(frame, Ack):
            core.acknowledged(self._connection, frame, now_ms)
        return None

    is_greeted = False

    def _refuse(self, refusal: Refusal) -> None:
        self.stream.send(1, encode_refusal(refusal))
        self._leading.drop(self._connection)

    def pump(self, *, has_paused: bool = False) -> None:
        """Send what fits into the window."""
        broker, core = self._leading.broker, self._leading.core
        log, now_ms = broker.log, int(broker.world.now)
        while (wanted := core.demand(self._connection, log.end, has_paused=has_paused)) is not None:
            (position, room), has_paused = wanted, False
            if position < log.begin:
                self._refuse(expired(core.epoch, log.extent()))
                return
            epoch, start, data = log.raw(position, room, core.epoch)
            self._send(Transfer(epoch, start, position, log.confirm, 0, 2**31, data))
            if core.sent(self._connection, len(data), log.end, now_ms):
                self._leading.pause()

    def heartbeat(self) -> None:
        """Send a heartbeat with the confirm position."""
        log, core = self._leading.broker.log, self._leading.core
        self._send(Transfer(core.epoch, 0, log.end, log.confirm, 0, 2**31, b""))
        core.sent(self._connection, 0, log.end, int(self._leading.broker.world.now))

    def _send(self, transfer: Transfer) -> None:
        self.stream.send(1, encode_transfer_head(transfer) + transfer.data)
