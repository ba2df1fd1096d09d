"""Judges what a process recovered; reads the files itself and shares no code with the store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.fuzz.workload import RETAIN, SEQUENCE_STEP, Model, operation
from tests.sim.log_judge import Seen, check_dense, read_changes, read_log

QUEUE, SESSION, RETAINED, LEDGER, MESSAGE, BATCH, CONTROL = 1, 4, 6, 8, 1, 2, 3
State = dict[tuple[int, bytes], tuple[bytes, int]]


class Judge:
    """What must stay true over all lives of one store."""

    def __init__(self, workload: int) -> None:
        self._workload = workload
        self._model = Model(workload)
        self._names: dict[int, str] = {}
        self.ends: dict[int, int] = {}
        self.epoch = 0
        self.records = 0

    def check(self, directory: Path, told: dict[str, Any], confirmed_number: int) -> None:
        """Compare what a process reported after its recovery with the files. Raises AssertionError."""
        records = read_log(directory)
        self.records += len(records)
        end = records[-1].end if records else 0
        assert told["confirm"] == told["end"], told["end"]
        assert end <= told["end"], ("the log ends before the store's end", end, told["end"])
        assert told["end"] - end < 4000 or not records, ("records are missing at the end", end, told["end"])
        epochs = [seen.epoch for seen in records]
        assert epochs == sorted(epochs), "epochs fall"
        # A start that found damage has written already what the damage took, in its own epoch.
        epoch, begun = json.loads((directory / "EPOCHS").read_bytes().splitlines()[0])["epochs"][-1]
        assert epoch == told["epoch"], (epoch, told["epoch"])
        before = [seen.epoch for seen in records if seen.position < begun]
        assert told["epoch"] > max([self.epoch, *before]), "the epoch was not raised"
        self.epoch = told["epoch"]
        state = replay(records)
        self._check_state(state, told, confirmed_number)
        self._check_operations(records, state)
        self._check_queues(records, told)

    def _check_state(self, state: State, told: dict[str, Any], confirmed_number: int) -> None:
        shown = {
            (kind, key.encode("latin-1")): (value.encode("latin-1"), position)
            for kind, key, value, position in told["state"]
        }
        wrong = {key: (state.get(key), shown.get(key)) for key in state.keys() | shown.keys()}
        wrong = {key: pair for key, pair in wrong.items() if pair[0] != pair[1]}
        assert not wrong, f"log/store show {dict(list(wrong.items())[:3])}"
        done = int(state[LEDGER, b"sink"][0]) + 1 if (LEDGER, b"sink") in state else 0
        assert done > confirmed_number, f"operation {confirmed_number} was confirmed, the log has {done}"
        self._model.advance(done)
        sessions = {key: value for (kind, key), (value, _) in state.items() if kind == SESSION}
        assert sessions == self._model.sessions, "sessions are not the result of the operations"
        retained = {topic.encode(): sequence for topic, sequence in told["retained"].items()}
        assert retained == self._model.retained, "retained messages are not the result of the operations"

    def _check_operations(self, records: list[Seen], state: State) -> None:
        """The operations in the log are consecutive, each with all its messages."""
        counts: dict[int, int] = {}
        for seen in records:
            if seen.kind in (MESSAGE, BATCH) and seen.dispatch and seen.body != b"loose":
                number, at = divmod(seen.sequence, SEQUENCE_STEP)
                meant = operation(number, self._workload)
                assert seen.body == meant.bodies[at], (number, at)
                assert (seen.kind == BATCH, seen.count) == (meant.counts[at] > 0, meant.counts[at] or 1), (number, at)
                counts[number] = counts.get(number, 0) + 1
        numbers = list(counts)
        if not numbers:
            return
        assert numbers == list(range(numbers[0], self._model.number)), "operations are missing in the log"
        for number in numbers[1:]:
            assert counts[number] == len(operation(number, self._workload).bodies), f"operation {number} is incomplete"

    def _check_queues(self, records: list[Seen], told: dict[str, Any]) -> None:
        ends = check_dense(records)
        places: dict[int, list[tuple[int, int]]] = {}
        for seen in records:
            for queue, offset in seen.dispatch:
                places.setdefault(queue, []).append((offset, seen.position))
        for key, (name, low, high, following, positions) in told["queues"].items():
            queue = int(key)
            assert self._names.setdefault(queue, name) == name, f"id {queue} was used again for {name}"
            logged = places.get(queue, [])
            assert positions == [position for _, position in logged], f"index of {name} differs from the log"
            first, end = (logged[0][0], ends[queue]) if logged else (following, following)
            assert (low, high, following) == (first, end, end), (name, low, high)
            assert following >= self.ends.get(queue, 0), f"offsets of {name} went back to {following}"
            self.ends[queue] = following
        assert all(ends.get(queue, 0) <= self.ends[queue] for queue in self.ends if str(queue) in told["queues"])


def replay(records: list[Seen]) -> State:
    """The state that the records alone give."""
    state: State = {}
    for seen in records:
        if seen.kind == CONTROL:
            for kind, key, value in read_changes(seen.body):
                if value is None:
                    state.pop((kind, key), None)
                else:
                    state[kind, key] = (value, seen.position)
        elif seen.flags & RETAIN == RETAIN:
            topic = b"r/%d" % retained_topic(seen)
            if seen.body:
                state[RETAINED, topic] = (b"", seen.position)
            else:
                state.pop((RETAINED, topic), None)
    return state


def retained_topic(seen: Seen) -> int:
    """Number of the retained topic, from the record's first property."""
    return int(seen.meta.rpartition(b"r/")[2])
