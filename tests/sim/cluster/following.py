"""A broker as replica: dial its master, carry out the follower core's actions, dial again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.replication.follower import Action, AdvanceConfirm, Cut, Follower, Over, ReplicaIdentity, Reset, Send, Write
from broker.replication.frames import FROM_MASTER, Decoder
from remoting.protocol.errors import RemoteViolation
from tests.sim.cluster.controllers import CLUSTER, GROUP
from tests.sim.cluster.network import Side, Stream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.sim.cluster.broker import Broker


class Following:
    """Following one master in one epoch, over as many connections as it takes."""

    def __init__(self, broker: Broker, master: Broker, epoch: int) -> None:
        self.broker, self.master, self.epoch = broker, master, epoch
        self.side: MasterSide | None = None
        self.is_open = True
        self._dial_at = broker.world.now
        self.tick()

    def tick(self) -> None:
        """Dial when it is time; give up on a silent master."""
        world = self.broker.world
        if self.side is not None and world.now - self.side.heard_at > self.broker.cluster.pace.silence_ms:
            self.side.close()
        if self.side is None and world.now >= self._dial_at:
            self.side = MasterSide(self)

    def lost(self) -> None:
        """The connection is lost: dial again in a while."""
        self.side = None
        if self.is_open:
            pause = self.broker.cluster.pace.tick_ms * (0.1 + self.broker.world.chance.random())
            self._dial_at = self.broker.world.now + pause
            self.broker.after(pause, self._again)

    def _again(self) -> None:
        if self.is_open:
            self.tick()

    def flushed(self) -> None:
        """More of the log is on the disk."""
        if self.side is not None:
            self.side.flushed()

    def close(self) -> None:
        """Another master, or none."""
        self.is_open = False
        if self.side is not None:
            self.side.close()


class MasterSide(Side):
    """The replica's end of one connection."""

    def __init__(self, following: Following) -> None:
        self._following = following
        broker = following.broker
        log = broker.log
        self.heard_at = broker.world.now
        self._decoder = Decoder(FROM_MASTER)
        self.core: Follower = broker.cluster.build.follower(
            ReplicaIdentity(broker=broker.ident, cluster=CLUSTER, group=GROUP, is_learner=broker.is_learner),
            log.extent(), flushed=log.kept, confirm=log.confirm, epoch=broker.epoch, nonce=bytes(16),
        )  # fmt: skip
        self.stream: Stream = broker.cluster.network.connect(broker, following.master, following.master.accept)
        self.stream.sides[0] = self

    def close(self) -> None:
        """Close it from here."""
        self.stream.close(0)
        if self._following.side is self:
            self._following.lost()

    def on_closed(self) -> None:
        if self._following.side is self:
            self._following.lost()

    def on_data(self, data: bytes) -> None:
        self.heard_at = self._following.broker.world.now
        try:
            for frame in self._decoder.feed(data):
                self._do(self.core.receive(frame))
                if self._following.side is not self:
                    return
        except RemoteViolation:
            self.close()
        self._following.broker.flush()

    def flushed(self) -> None:
        """Everything the log reports as kept may be acknowledged."""
        self._do(self.core.flushed(self._following.broker.log.kept))

    def _do(self, actions: Sequence[Action]) -> None:
        broker = self._following.broker
        log = broker.log
        for action in actions:
            if isinstance(action, Send):
                self.stream.send(0, action.data)
            elif isinstance(action, Write):
                transfer = action.transfer
                log.append_raw(transfer.position, transfer.epoch, transfer.epoch_start, bytes(transfer.data))
                if log.is_async or "ack-before-fsync" in broker.flags:
                    self._do(self.core.flushed(log.end))
            elif isinstance(action, AdvanceConfirm):
                log.limit = action.position
                log.settle()
                broker.cluster.judge.shown(broker)
            elif isinstance(action, Cut | Reset):
                self._cut(action)
            elif isinstance(action, Over):
                broker.world.tell(broker.name, f"leaves its master: {action.remark}")
                broker.epoch = max(broker.epoch, action.epoch)
                self.close()

    def _cut(self, action: Cut | Reset) -> None:
        broker, log = self._following.broker, self._following.broker.log
        broker.cut_away()
        if action.below_confirm:
            broker.cluster.judge.cut_below_confirm(broker, action)
        if isinstance(action, Reset):
            broker.world.tell(broker.name, f"starts over at {action.position}")
            log.reset(action.position, self._following.master.log.floors)
        else:
            broker.world.tell(broker.name, f"cuts {log.end} to {action.position}")
            log.truncate(action.position)
        broker.epoch = max(broker.epoch, self.core.epoch)
        broker.cluster.judge.was_cut(broker)
        self._do(self.core.cut(log.end, log.kept))
