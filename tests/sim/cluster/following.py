"""A broker as replica: the shipped `LogFollowing` over the simulated network and the model log."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from broker.replication.follower import Follower, LinkPhase, ReplicaIdentity
from broker.replication.log_following import MasterStream
from tests.sim.cluster.controllers import CLUSTER, GROUP
from tests.sim.cluster.network import Side, Stream
from tests.sim.cluster.world import Violation

if TYPE_CHECKING:
    from tests.sim.cluster.broker import Broker


class Following:
    """Following one master."""

    def __init__(self, broker: Broker, address: str, epoch: int) -> None:
        self.broker = broker
        assert broker.opened is not None
        self.following = broker.cluster.build.following(
            broker.host, broker.opened, self._follower(is_learner=broker.is_learner), address, epoch,
            silence_ms=int(broker.cluster.pace.silence_ms), dial=self._dial, superseded=broker.superseded,
            failed=self._failed,
        )  # fmt: skip
        self.following.start()

    @property
    def master(self) -> Broker:
        """Whose log is copied."""
        return self.broker.cluster.named(self.following.address)

    def _follower(self, *, is_learner: bool) -> Callable[..., Follower]:
        broker = self.broker
        identity = ReplicaIdentity(broker=broker.ident, cluster=CLUSTER, group=GROUP, is_learner=is_learner)
        return partial(broker.cluster.build.follower, identity)

    def introduce(self, *, is_learner: bool) -> None:
        """The broker is a learner, or one no more."""
        self.following.introduce(self._follower(is_learner=is_learner))

    def _dial(self, _address: str, stream: MasterStream) -> MasterSide:
        return MasterSide(self, stream)

    @staticmethod
    def _failed(error: Exception) -> None:
        if isinstance(error, (Violation, AssertionError)):
            raise error
        raise Violation("no replica's log fails", str(error)) from error

    def continues(self, epoch: int) -> bool:
        """Whether the master's stream of this epoch continues here."""
        stream = self.following.stream
        follower = stream.follower if stream is not None else None
        return follower is not None and follower.stage is LinkPhase.STREAMING and follower.epoch == epoch


class MasterSide(Side):
    """The replica's end of one connection: what a socket is in the product."""

    def __init__(self, following: Following, stream: MasterStream) -> None:
        broker = self._broker = following.broker
        self._stream = stream
        self._network_stream: Stream = broker.cluster.network.connect(broker, following.master, following.master.accept)
        self._network_stream.sides[0] = self
        broker.after(0, stream.opened)

    def on_data(self, data: bytes) -> None:
        self._stream.received(data)

    def on_closed(self) -> None:
        self._stream.ended("the master closed the connection")

    def send(self, head: bytes, data: bytes | memoryview = b"") -> None:
        """Bytes for the master."""
        self._network_stream.send(0, head + bytes(data))

    def close(self) -> None:
        """Close from here; the stream learns of it after the present turn."""
        if self._network_stream.open[0]:
            self._network_stream.close(0)
            self._broker.after(0, self.on_closed)

    abort = close
