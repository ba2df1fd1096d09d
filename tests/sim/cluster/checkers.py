"""The judge: what must hold at every moment, and what must be true when everything is healed.

acknowledged messages      every one is in the log at its place, once; per queue offsets follow each other
same offset, same bytes    whatever anybody was shown at a position is what everybody is shown there, for ever
nothing above confirm      what is shown is on the disk of every broker that could be elected at that moment; where
                           what is written counts, in the memory of its machine
one master per epoch       an epoch is begun by one process, once
no stale read              a master that stood still for long answers no reader when another one had begun meanwhile and
                           shows more than this one
pulls                      one reader of a queue gets message after message, without a gap and never back, whichever
                           replica or master it asks; a replica gives nothing that no master has confirmed
controllers                what reads return is one history in real time
replicas                   byte for byte equal after healing
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from controller.replicas.group import GroupView
from tests.sim.cluster.disk import Record
from tests.sim.cluster.world import Violation

if TYPE_CHECKING:
    from tests.sim.cluster.broker import Broker, Cluster
    from tests.sim.cluster.pulls import Pull


class Judge:
    """Sees everything; raises Violation. With `is_weak` a failover may lose messages by configuration."""

    def __init__(self, *, is_weak: bool) -> None:
        self.is_weak = is_weak
        self.cluster: Cluster | None = None
        self.acks: dict[int, tuple[int, int, int]] = {}
        self._proof = bytearray()
        """What anybody was ever shown."""
        self._shown_records: list[Record] = []
        self._places: dict[tuple[int, int], int] = {}
        self._confirmed = 0
        """Up to where any master has confirmed."""
        self._continue_at: dict[tuple[str, int], int] = {}
        """Reader and queue -> where it continues."""
        self.pulled_from_replicas = 0
        """Messages."""
        self._epochs: dict[int, tuple[int, int]] = {}
        self._began: dict[int, float] = {}
        self._ends: dict[int, int] = {}
        """Epoch -> up to where its master acknowledged or showed."""
        self.reads = 0
        self._judged: dict[int, tuple[int, int]] = {}
        self._last_view = (0, 0)
        self._members: tuple[int, ...] = ()
        self._reads: list[tuple[float, tuple[int, int]]] = []

    # -- at every moment ----------------------------------------------------------------------------------------------

    def begins_epoch(self, ident: int, epoch: int, name: str) -> None:
        """A broker becomes master."""
        assert self.cluster is not None
        boot = self.cluster.brokers[ident - 1].boot
        before = self._epochs.setdefault(epoch, (ident, boot))
        if before != (ident, boot):
            raise Violation("one master per epoch", f"epoch {epoch}: {name} boot {boot}, and broker, boot {before}")
        self._began.setdefault(epoch, self.cluster.world.now)

    def _reached(self, broker: Broker, end: int) -> None:
        if broker.leading is not None:
            epoch = broker.leading.core.epoch
            self._ends[epoch] = max(self._ends.get(epoch, 0), end)
            self._confirmed = max(self._confirmed, broker.log.confirm)

    def granted(self, limit: int) -> None:
        """A master may confirm up to there, as soon as its own disk has it: a snapshot may say so first."""
        self._confirmed = max(self._confirmed, limit)

    def announced(self, broker: Broker) -> None:
        """A broker tells everybody that it is the master."""
        if broker.serving is None or broker.leading is not broker.serving:
            raise Violation("who is announced serves", broker.name)
        others = broker.leading.core.members.committed - {broker.ident}
        if broker.knows_damage() and others:
            raise Violation("nobody is served from a damaged log", f"{broker.name}, while {others} are in sync")

    def answers(self, broker: Broker, end: int) -> None:
        """A reader learns that the confirmed part ends at `end`."""
        if broker.leading is None:
            raise Violation("the master alone answers", broker.name)
        self.reads += 1
        epoch = broker.leading.core.epoch
        for newer, began in self._began.items():
            if newer > epoch and began <= broker.came_back and self._ends.get(newer, 0) > end and not self.is_weak:
                raise Violation(
                    "no stale read after a pause",
                    f"{broker.name} says {end} in epoch {epoch}, that of {newer} had said {self._ends[newer]}",
                )

    def acknowledged(self, ident: int, queue: int, offset: int, broker: Broker, position: int, end: int) -> None:
        """A client's message was acknowledged."""
        self.acks[ident] = (queue, offset, position)
        self._reached(broker, end)
        if self.is_weak:
            return
        if self._places.setdefault((queue, offset), ident) != ident:
            raise Violation(
                "total order per queue",
                f"messages {self._places[queue, offset]} and {ident} both at {offset} of {queue}",
            )
        self._same(broker, position, end)
        self._all_electable_have(position, min(end, len(self._proof)))

    def pulled(self, broker: Broker, wanted: Pull, records: list[Record], next_offset: int) -> None:
        """A reader was given the messages from its offset on, and continues at another one."""
        if self.is_weak:
            return
        for index, (position, queue, offset, ident, _epoch) in enumerate(records):
            if offset != wanted.offset + index or self._places.setdefault((queue, offset), ident) != ident:
                known = self._places.get((queue, offset))
                raise Violation(
                    "total order per queue",
                    f"{broker.name} gives {ident} at {offset} of {queue} for {wanted}, others saw {known}",
                )
            if position >= self._confirmed:
                raise Violation(
                    "nothing is read above confirm",
                    f"{broker.name} gives {position}, the masters have confirmed up to {self._confirmed}",
                )
        before = self._continue_at.get((wanted.reader, wanted.queue), 0)
        if next_offset < before:
            raise Violation("no reader goes back", f"{broker.name} sends {wanted} to {next_offset} after {before}")
        self._continue_at[wanted.reader, wanted.queue] = next_offset
        if broker.leading is None:
            self.pulled_from_replicas += len(records)
            if next_offset != wanted.offset + len(records):
                raise Violation("only a master reports a loss", f"{broker.name} sends {wanted} to {next_offset}")

    def shown(self, broker: Broker) -> None:
        """Readers of a broker may have advanced."""
        log = broker.log
        self._reached(broker, log.confirm)
        boot, start = self._judged.get(broker.ident, (0, 0))
        if boot != broker.boot:
            start = log.begin
        if log.confirm <= start and boot == broker.boot:
            return
        self._judged[broker.ident] = (broker.boot, log.confirm)
        if not self.is_weak:
            self._same(broker, start, log.confirm)

    def _same(self, broker: Broker, start: int, end: int) -> None:
        """What a broker shows again is unchanged; what it shows first is on every broker that may be elected."""
        proof, begin = self._proof, broker.log.begin
        start = max(start, begin)
        known = min(end, len(proof))
        if start < known and broker.log.seen(start, known) != bytes(proof[start:known]):
            raise Violation("same offset, same bytes", f"{broker.name} shows {start}..{known}, others saw other bytes")
        if end > len(proof):
            first = len(proof)
            assert begin <= first, (begin, first)
            proof += broker.log.seen(first, end)
            self._shown_records += [each for each in broker.log.records if first <= each[0] < end]
            self._all_electable_have(first, end)

    def _all_electable_have(self, start: int, end: int) -> None:
        assert self.cluster is not None
        for ident in self.cluster.controllers.view().in_sync:
            self._has(self.cluster.brokers[ident - 1], start, end)

    def _has(self, member: Broker, start: int, end: int) -> None:
        first = max(start, member.log.begin)
        if first < end and member.safe and member.log.held(first, end) != bytes(self._proof[first:end]):
            raise Violation(
                "nothing visible above confirm", f"{first}..{end} was shown, and {member.name} could be elected without"
            )

    def was_cut(self, broker: Broker) -> None:
        """After a truncation, what the broker shows is checked again from the new end."""
        self._judged[broker.ident] = (broker.boot, min(self._judged.get(broker.ident, (0, 0))[1], broker.log.confirm))

    def cut_below_confirm(self, broker: Broker, action: Any) -> None:
        """A replica had to truncate what had been confirmed."""
        if not self.is_weak:
            raise Violation(
                "no confirmed byte is cut", f"{broker.name}: {action}, confirmed up to {broker.log.confirm}"
            )

    def read_register(self, started: float, ended: float, view: GroupView) -> None:
        """A read of the group from the controllers, with the times of its request and answer."""
        version = (view.master_epoch, view.set_epoch)
        for answered, other in self._reads:
            if answered < started and (other[0] > version[0] or other[1] > version[1]):
                raise Violation("the controllers' register is linearizable", f"{version} read after {other}")
        self._reads = [*self._reads[-40:], (ended, version)]

    def changed(self, view: GroupView) -> None:
        """The controllers agreed on something."""
        version = (view.master_epoch, view.set_epoch)
        if version[0] < self._last_view[0] or version[1] < self._last_view[1]:
            raise Violation("epochs never fall", f"{version} after {self._last_view}")
        self._last_view = version
        if not self.is_weak and self.cluster is not None and self._members != view.in_sync:
            for ident in set(view.in_sync).difference(self._members):
                self._has(self.cluster.brokers[ident - 1], 0, len(self._proof))
        self._members = view.in_sync

    # -- after healing ------------------------------------------------------------------------------------------------

    def is_settled(self) -> bool:
        """Whether every broker follows the master and has everything; an equal end alone may be an accident."""
        assert self.cluster is not None
        master = self.cluster.master()
        if master is None or master.leading is None or not master.leading.may_answer():
            return False
        log = master.log
        return log.confirm == log.end and all(
            each.log.end == log.end
            and each.log.flushed == log.end
            and each.damage is None
            and (each is master or each.follows(master))
            for each in self.cluster.brokers
        )

    def final(self) -> None:
        """All replicas are equal, and nothing acknowledged is missing."""
        assert self.cluster is not None
        master = self.cluster.master()
        assert master is not None
        truth = master.log
        for each in self.cluster.brokers:
            begin = max(truth.begin, each.log.begin)
            if each.log.durable(begin, truth.end) != truth.durable(begin, truth.end):
                raise Violation(
                    "replica byte equality", f"{each.name} and {master.name} differ between {begin} and end"
                )
        self._in_order(truth.records)
        for each in self.cluster.brokers:
            for record in each.log.records:
                entry = each.log.epochs.at(record[0])
                if entry is None or entry[0] != record[4]:
                    raise Violation("the epoch list says who wrote what", f"{each.name}: {record} lies in {entry}")
        if self.is_weak:
            return
        by_place = {record[0]: record for record in self._shown_records} | {each[0]: each for each in truth.records}
        for ident, (queue, offset, position) in self.acks.items():
            record = by_place.get(position)
            if record is None or record[1:4] != (queue, offset, ident):
                raise Violation(
                    "no acknowledged message lost", f"message {ident} at {position}, {offset} of {queue}: {record}"
                )
        if truth.seen(truth.begin, len(self._proof)) != bytes(self._proof[truth.begin :]):
            raise Violation("same offset, same bytes", "what was shown is not what the log holds in the end")

    def _in_order(self, records: list[Record]) -> None:
        next_offsets: dict[int, int] = {}
        idents: set[int] = set()
        epoch = 0
        for position, queue, offset, ident, its_epoch in records:
            if next_offsets.setdefault(queue, offset) != offset or its_epoch < epoch:
                raise Violation("total order per queue", f"{offset} of queue {queue} at {position}, epoch {its_epoch}")
            if ident in idents:
                raise Violation("total order per queue", f"message {ident} is there twice")
            next_offsets[queue] = offset + 1
            idents.add(ident)
            epoch = its_epoch
