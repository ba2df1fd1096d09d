"""The verdicts over a run, as pure functions of what was sent, acknowledged and read.

Total queue: lost = acknowledged and nowhere, unexpected = read and never sent, duplicates = read more than once, which
is allowed and counted. Order: first readings of one source in one queue rise. Same bytes: what a reader saw at an
offset is there at the end, at every acknowledged place stands the message it was promised to, and a queue has no gaps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from tests.chaos.ledger import Ledger, parse
from tests.chaos.linearizable import UNKNOWN, Operation, Undecided, first_impossible

SHOWN_MAX = 20
BLOCK_BYTES = 64 * 1024
NEAR_S, NEAR_MAX = 10.0, 30
"""The report of an impossible operation includes the last operations called at most this long before its answer."""


@dataclass
class Verdict:
    """What one judge found."""

    judge: str
    checked: int = 0
    violations: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """It checked something and found nothing."""
        return not self.violations and self.checked > 0

    def blame(self, kind: str, text: str) -> None:
        """Count a violation; the first few are kept as text."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if len(self.violations) < SHOWN_MAX:
            self.violations.append(f"{kind}: {text}")


def total_queue(judge: str, ledgers: Sequence[Ledger], read: Iterable[bytes]) -> Verdict:
    """Everything acknowledged was read, and nothing was read that was not sent."""
    verdict = Verdict(judge, counts={"lost": 0, "unexpected": 0, "duplicates": 0, "recovered": 0})
    known = {ledger.source: ledger for ledger in ledgers}
    seen: dict[str, Counter[int]] = {source: Counter() for source in known}
    for data in read:
        found = parse(data)
        if found is None or found[0] not in known or found[1] >= len(known[found[0]].sent):
            verdict.blame("unexpected", repr(data[:60]))
            continue
        seen[found[0]][found[1]] += 1
    for source, ledger in known.items():
        counter = seen[source]
        verdict.counts["duplicates"] += sum(counter.values()) - len(counter)
        for number in range(len(ledger.sent)):
            if ledger.is_acknowledged(number):
                verdict.checked += 1
                if number not in counter:
                    verdict.blame("lost", f"{source}:{number} acknowledged at {ledger.acknowledged[number]:.3f} s")
            else:
                verdict.counts["recovered"] += number in counter
    return verdict


def order(judge: str, read: Mapping[str, Iterable[bytes]]) -> Verdict:
    """In each queue (or topic) the first readings of every source are in the order of sending."""
    verdict = Verdict(judge, counts={"disorder": 0})
    for queue, messages in read.items():
        highest: dict[str, int] = {}
        seen: dict[str, set[int]] = {}
        for data in messages:
            found = parse(data)
            if found is None:
                continue
            source, number = found
            mine = seen.setdefault(source, set())
            if number in mine:
                continue
            mine.add(number)
            verdict.checked += 1
            if number < highest.get(source, -1):
                verdict.blame("disorder", f"{source}:{number} after {highest[source]} in {queue}")
            else:
                highest[source] = number
    return verdict


def same_bytes(
    observed: Mapping[str, Mapping[int, int]], final: Mapping[str, Mapping[int, int]], lowest: Mapping[str, int]
) -> Verdict:
    """Observed and final: queue -> offset -> checksum. What was ever shown at an offset is there at the end."""
    verdict = Verdict("same offset, same bytes", counts={"changed": 0, "vanished": 0, "gap": 0})
    for queue, offsets in observed.items():
        now = final.get(queue, {})
        for offset, checksum in offsets.items():
            verdict.checked += 1
            if offset not in now:
                if offset >= lowest.get(queue, 0):
                    verdict.blame("vanished", f"{queue} offset {offset} was shown and is gone")
            elif now[offset] != checksum:
                verdict.blame("changed", f"{queue} offset {offset}: {checksum:#010x} became {now[offset]:#010x}")
    for queue, offsets in final.items():
        verdict.checked += len(offsets)
        begin = lowest.get(queue, 0)
        missing = set(range(begin, max(offsets, default=begin - 1) + 1)) - set(offsets)
        for offset in sorted(missing):
            verdict.blame("gap", f"{queue} has nothing at offset {offset}")
    return verdict


def places(ledgers: Sequence[Ledger], final: Mapping[tuple[str, int], Mapping[int, bytes]]) -> Verdict:
    """At each acknowledged (queue, offset) is the message acknowledged there; final: (topic, queue) -> bodies."""
    verdict = Verdict("promised places", counts={"elsewhere": 0})
    for ledger in ledgers:
        for number, (queue, offset) in ledger.places.items():
            verdict.checked += 1
            found = parse(final.get((ledger.topic, queue), {}).get(offset, b""))
            if found != (ledger.source, number):
                verdict.blame("elsewhere", f"{ledger.source}:{number} promised at {queue}/{offset}, there is {found}")
    return verdict


def registers(histories: Mapping[str, Sequence[Operation]]) -> Verdict:
    """Register -> its operations: each behaved as one register, whichever controller answered."""
    verdict = Verdict("registers linearizable", counts={"unknown": 0, "impossible": 0})
    for name, history in histories.items():
        verdict.checked += sum(each.answered != UNKNOWN for each in history)
        verdict.counts["unknown"] += sum(each.answered == UNKNOWN and each.is_write for each in history)
        try:
            found = first_impossible(history)
        except Undecided as error:
            verdict.blame("undecided", f"{name}: {error}")
            continue
        if found is not None:
            near = [each for each in history if found.called - NEAR_S <= each.called <= found.answered]
            told = "; ".join(str(each) for each in sorted(near, key=lambda each: each.called)[-NEAR_MAX:])
            verdict.blame("impossible", f"{name}: {found}; around it: {told}")
    return verdict


def equal_logs(logs: Mapping[str, Mapping[str, bytes]]) -> Verdict:
    """Logs of a group's brokers (name -> file -> bytes) hold the same bytes as far as the shorter one goes.

    A file is as long as its segment from the beginning, so after its end a log is zeros, or has no further file.
    """
    verdict = Verdict("replicas equal", counts={"unequal": 0, "shorter": 0})
    for one, other in pairwise(sorted(logs)):
        for file in sorted({*logs[one], *logs[other]}):
            first, second = logs[one].get(file, b""), logs[other].get(file, b"")
            verdict.checked += 1
            at = first_difference(first, second)
            if at is None:
                continue
            if any(first[at:]) and any(second[at:]):
                verdict.blame("unequal", f"{file} of {one} and {other} differ from byte {at} on")
            else:
                verdict.counts["shorter"] += 1
    return verdict


def first_difference(one: bytes, other: bytes) -> int | None:
    """Where two byte strings begin to differ; None when they are equal, or the longer one continues with zeros."""
    size = max(len(one), len(other))
    for begin in range(0, size, BLOCK_BYTES):
        first, second = one[begin : begin + BLOCK_BYTES], other[begin : begin + BLOCK_BYTES]
        if first != second:
            length = max(len(first), len(second))
            padded = zip(first.ljust(length, b"\0"), second.ljust(length, b"\0"), strict=True)
            found = next((place for place, (a, b) in enumerate(padded) if a != b), None)
            if found is not None:
                return begin + found
    return None
