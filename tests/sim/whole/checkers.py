"""The judge: what must hold at every moment of the shipped processes, and when everything is healed.

acknowledged              at that moment on as many disks as was promised; in the end in every log, once
same offset, same bytes   what any broker calls confirmed at a position is what every other one does, for ever
one master per epoch      one process serves as the master of an epoch
order                     what a producer was told is safe lies in the order of being told; offsets are dense
replicas                  byte for byte equal after healing
nothing fails             no process, task or callback ends with an error that nobody handles
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sim.log_judge import check_dense, read_log
from tests.sim.whole.loop import Host, Violation

if TYPE_CHECKING:
    from tests.sim.whole.group import Cluster, Process

PART_BYTES = 64 * 1024


class Judge:
    """Sees everything; raises Violation."""

    def __init__(self, cluster: Cluster, *, copies: int) -> None:
        """`copies`: how many disks an acknowledged message is on."""
        self.cluster, self._copies = cluster, copies
        self.acknowledged: list[bytes] = []
        self.proof = bytearray()
        """What was confirmed anywhere."""
        self._found: Violation | None = None
        self._judged: dict[str, tuple[int, int]] = {}
        self._epochs: dict[int, tuple[str, int]] = {}

    def took(self, text: bytes) -> None:
        """A producer was told that its message is safe."""
        self.acknowledged.append(text)
        logs = {each.name: self.cluster.disks.durable_log(each) for each in self.cluster.brokers}
        having = [name for name, files in logs.items() if any(text in each for each in files)]
        if len(having) < self._copies:
            # The producer's loop would swallow it.
            self._found = Violation("acknowledged means durable", f"{text!r} is on the disks of {having} only")

    def look(self, host: Host) -> None:
        """A process has done something."""
        if self._found is not None:
            raise self._found
        if host not in self.cluster.brokers or host.app is None:  # type: ignore[attr-defined]
            return
        process: Process = host  # type: ignore[assignment]
        member = process.app._member
        store = member.store if member is not None else None
        if store is None:
            return
        if member.gate.serving and member.master is not None:
            epoch, this = member.master.view.epoch, (process.name, process.boot)
            if self._epochs.setdefault(epoch, this) != this:
                raise Violation("one master per epoch", f"{this} and {self._epochs[epoch]} in epoch {epoch}")
        boot, known = self._judged.get(process.name, (0, 0))
        confirm = store.confirm_position
        if boot != process.boot:
            known = store.begin_position
        if confirm > known or boot != process.boot:
            self._judged[process.name] = (process.boot, confirm)
            self._same(process, store, known, confirm)

    def _same(self, process: Process, store, start: int, end: int) -> None:
        at = max(start, store.begin_position)
        while at < end:
            part = store.replica.raw(at, PART_BYTES)
            if part is None:
                raise Violation("same offset, same bytes", f"{process.name} has nothing at {at} and confirms {end}")
            data = bytes(part.data)[: end - at]
            known = bytes(self.proof[at : at + len(data)])
            if known != data[: len(known)]:
                raise Violation(
                    "same offset, same bytes", f"{process.name} confirms other bytes at {at}..{at + len(data)}"
                )
            if at + len(data) > len(self.proof):
                self.proof[at:] = data
            at = part.position + len(part.data)

    def failures(self) -> None:
        """Nothing failed."""
        found = [each for each in self.cluster.world.failures if "PowerCut" not in each]
        if found:
            raise Violation("nothing fails", "; ".join(found[:3]))

    # -- after healing

    def is_settled(self) -> bool:
        """Whether all brokers are up with the same confirmed end."""
        states = [each.app._member.log_state() for each in self.cluster.brokers if each.app is not None]
        master = self.cluster.master()
        if master is None or len(states) < len(self.cluster.brokers):
            return False
        return len({(state.end, state.confirm) for state in states}) == 1 and states[0].end == states[0].confirm > 0

    def final(self) -> None:
        """All logs are equal, and nothing acknowledged is missing."""
        logs = {each.name: read_log(each.directory / "broker") for each in self.cluster.brokers}
        ends = {name: records[-1].end if records else 0 for name, records in logs.items()}
        first = logs[self.cluster.brokers[0].name]
        for name, records in logs.items():
            if records != first:
                raise Violation("replica byte equality", f"{name} differs from the others, ends {ends}")
        check_dense(first)
        places: dict[bytes, int] = {}
        for record in first:
            at = record.body.find(b"<p")
            if at >= 0:
                text = record.body[at : record.body.index(b">", at) + 1]
                if text in places:
                    raise Violation(
                        "a message sent once is there once", f"{text!r} at {places[text]} and {record.position}"
                    )
                places[text] = record.position
        lost = [each for each in self.acknowledged if each not in places]
        if lost:
            raise Violation("no acknowledged message lost", f"{len(lost)} of {len(self.acknowledged)}: {lost[:5]}")
        latest: dict[bytes, int] = {}
        for text in self.acknowledged:
            who = text.split(b"-")[0]
            if places[text] < latest.get(who, -1):
                raise Violation("order of a producer", f"{text!r} lies before one acknowledged earlier")
            latest[who] = places[text]
