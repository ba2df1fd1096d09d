"""Planted bugs of the connections between a master and its replicas, as in `plants`: what the shipped streams decide.

Each leaves out one thing that `replica_streams` or `log_following` does around the rules of `leader` and `follower`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from broker.replication.epochs import Epochs, Extent
from broker.replication.follower import Action, AdvanceConfirm, Cut, Follower, Reset
from broker.replication.frames import Ack
from broker.replication.host import ServedLog
from broker.replication.leader import Leader
from broker.replication.log_following import LogCopy, LogFollowing, MasterStream
from broker.replication.replica_streams import Leadership, Piece, Pieces, ReplicaStream, ReplicaStreams
from tests.sim.cluster.broker import Build


class CountsTheSent(ReplicaStreams):
    """What was sent to a replica counts as acknowledged."""

    def acknowledged(self, stream: ReplicaStream, ack: Ack) -> None:
        return

    def refill(self, stream: ReplicaStream, *, has_paused: bool = False) -> None:
        super().refill(stream, has_paused=has_paused)
        replica = self._lead.leader._replicas.get(stream.number) if self._lead is not None else None
        if replica is not None and replica.sent >= 0:
            replica.acknowledged = max(replica.acknowledged, replica.sent)
            self.confirm()


class ConfirmsTheKept(ReplicaStreams):
    """A master confirms what its own disk has; the rule of the group does not limit its store."""

    def lead(self, leader: Leader, store: ServedLog) -> None:
        super().lead(leader, store)
        store.positions.limit_confirm(None)

    def confirm(self) -> None:
        if self._lead is not None:
            self._lead.store.positions.limit_confirm(None)


class ShowsTheEnd(Pieces):
    """A replica is told that all of the log is confirmed."""

    def at(self, store: ServedLog, epochs: Any, position: int, bytes_max: int) -> Piece | None:
        part = store.replica.raw(position, bytes_max)
        if part is None:
            return None
        _, start = epochs.at(position) or (part.epoch, position)
        return Piece(part, start, store.end_position)


class TellsTheEnd(ReplicaStreams):
    """See ShowsTheEnd."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._pieces = ShowsTheEnd()


class SendsOnce(ReplicaStreams):
    """Acknowledgements make no room for more."""

    def advance(self, stream: ReplicaStream) -> None:
        self.confirm()


class PausesForEver(ReplicaStreams):
    """Little data waits for more, and for nothing else."""

    def _paused(self, lead: Leadership) -> None:
        lead.is_pausing = False


class ToTheConfirmed(Leadership):
    """A master says that its log ends at the confirm position."""

    __slots__ = ()

    def extent(self) -> Extent:
        extent = super().extent()
        return Extent(extent.begin, self.store.confirm_position, extent.epochs)


class EndsAtTheConfirmed(ReplicaStreams):
    """See ToTheConfirmed."""

    def lead(self, leader: Leader, store: ServedLog) -> None:
        super().lead(leader, store)
        self._lead.__class__ = ToTheConfirmed


class KnowsItsLastEpoch(LogFollowing):
    """A replica says of its log who wrote the end, and not who wrote what is before."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.log_copy = OneEpoch(self.log_copy.store, self.host.log)


class OneEpoch(LogCopy):
    """See KnowsItsLastEpoch."""

    def sound_extent(self) -> Extent:
        extent = super().sound_extent()
        return Extent(extent.begin, extent.end, Epochs(list(extent.epochs)[-1:]))


# -- a replica's end --------------------------------------------------------------------------------------------------


class CutsNothing(LogCopy):
    """The log is not cut, and said to be."""

    def cut(self, action: Cut | Reset) -> None:
        if isinstance(action, Reset):
            super().cut(action)


class CopiesWithoutCuts(LogFollowing):
    """See CutsNothing."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.log_copy = CutsNothing(self.log_copy.store, self.host.log)


class RemembersItsFirstLog(LogFollowing):
    """Every connection begins with the log as it was at the first one."""

    first: Any = None

    def decider(self) -> Follower:
        made = super().decider()
        if self.first is None:
            self.first = self.log_copy.sound_extent()
        extent = self.first
        return self._make(
            extent, flushed=extent.end, confirm=min(self.log_copy.store.confirm_position, extent.end),
            epoch=self.epoch, nonce=made._nonce,
        )  # fmt: skip


class DialsOnce(LogFollowing):
    """A lost connection is not made again."""

    def ended(self, stream: MasterStream, reason: str) -> None:
        if stream is self.stream:
            self.stream, self.connected = None, False


class ActsElsewhere(LogFollowing):
    """Its streams are of another class."""

    streams: type[MasterStream] = MasterStream

    def _connect(self, round_: int) -> None:
        if round_ != self._rounds:
            return
        self._rounds += 1
        self._received_before = self.log_copy.received_bytes
        self.stream = stream = self.streams(self)
        stream.wire = self._dial(self.address, stream)
        self._watch(self._rounds, self.silence_ms)


class ShowsTheMastersEnd(MasterStream):
    """Everything that the master has counts as confirmed."""

    def _act(self, follower: Follower, actions: Sequence[Action]) -> None:
        end = max(follower.master_end, 0)
        super()._act(follower, [AdvanceConfirm(end) if isinstance(each, AdvanceConfirm) else each for each in actions])


class KeepsTheKept(MasterStream):
    """What is kept is acknowledged by the end of the log."""

    def kept(self, end: int) -> None:
        super().kept(self._following.log_copy.store.end_position)


def _with(streams: type[MasterStream]) -> type[LogFollowing]:
    return type("Acts" + streams.__name__, (ActsElsewhere,), {"streams": streams})


PLANTS: dict[str, Build] = {
    "sends-once": Build(streams=SendsOnce),
    "pauses-for-ever": Build(streams=PausesForEver),
    "ends-at-the-confirmed": Build(streams=EndsAtTheConfirmed),
    "knows-its-last-epoch": Build(following=KnowsItsLastEpoch),
    "counts-what-was-sent": Build(streams=CountsTheSent),
    "confirms-what-its-disk-has": Build(streams=ConfirmsTheKept),
    "tells-the-end-for-the-confirmed": Build(streams=TellsTheEnd),
    "cuts-nothing": Build(following=CopiesWithoutCuts),
    "remembers-its-first-log": Build(following=RemembersItsFirstLog),
    "dials-once": Build(following=DialsOnce),
    "shows-the-masters-end": Build(following=_with(ShowsTheMastersEnd)),
    "acknowledges-the-end": Build(following=_with(KeepsTheKept)),
}
