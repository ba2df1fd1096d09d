"""The processes whose power is cut: a store, a replica, a controller's journal, with `recorder.c` recording every call.

They run in a fork, write lines of JSON to a pipe and never return.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from broker.store.log import metadata
from controller.consensus.journal import Journal, RaftSnapshot, load, save
from runtime.files import make_directory
from tests.fuzz.power_replica import ReplicaVictim
from tests.fuzz.victim import Victim

REGULAR = b"\0"
ENTRIES_MAX = 12
"""Entries a journal keeps before a snapshot takes their place."""


@dataclass
class Power:
    """When the power is cut in one life, and what is recorded until then."""

    root: Path
    calls: int
    """Descriptor that the calls are written to."""
    cut_at: int
    """The call before which the process dies."""
    sync_us_max: int
    """Longest time that a flush takes."""
    seed: int
    orders: Any = None
    """The orders to a store or a replica."""


class Events:
    """Reports warnings and errors at once, because the process may end before the store is open."""

    def __init__(self, say: Callable[..., None]) -> None:
        self._say = say

    def __getattr__(self, level: str) -> Callable[..., None]:
        def take(name: str, **fields: object) -> None:
            if level in ("warning", "error"):
                self._say("event", f"{name} {fields}")

        return take


def live_store(directory: Path, power: Power, answers: int, go: int) -> None:
    """Run a store; ends with the process."""
    victim = Victim(directory, power.orders, answers, go, Events(lambda *words: victim.say(*words)))
    saved = metadata.DurableMark.save

    def save_and_tell(mark: metadata.DurableMark, noted: metadata.Mark) -> None:
        saved(mark, noted)
        victim.say("marked", noted.position, noted.epoch)

    metadata.DurableMark.save = save_and_tell  # type: ignore[method-assign]
    _run(power, answers, victim.run)


def live_replica(directory: Path, power: Power, answers: int, go: int) -> None:
    """Run a replica; ends with the process."""
    say = partial(_say, answers)
    victim = ReplicaVictim(directory, power.orders, power.seed, say, lambda: os.read(go, 1), Events(say), _cut_within)
    _run(power, answers, victim.run)


def live_journal(directory: Path, power: Power, answers: int, go: int) -> None:
    """Run a journal with its snapshot; ends with the process."""
    _run(power, answers, JournalVictim(directory, power, answers, go).run)


def _cut_within(calls: int) -> None:
    cut = ctypes.CDLL(None).recorder_cut_within
    cut.argtypes = [ctypes.c_long]
    cut(calls)


def _run(power: Power, answers: int, run: Callable[[], None]) -> None:
    try:
        recorder = ctypes.CDLL(None).recorder_start
        recorder.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_long, ctypes.c_uint, ctypes.c_uint]
        recorder(os.fsencode(power.root), power.calls, power.cut_at, power.sync_us_max, power.seed)
        run()
    except BaseException as error:  # every error is reported to the parent
        os.write(answers, json.dumps(["broken", f"{type(error).__name__}: {error}"]).encode() + b"\n")
    os._exit(0)


def command(index: int, term: int) -> bytes:
    """The content of the entry at `index`; anything else is invented."""
    return REGULAR + b"%d of %d" % (index, term) * (1 + index * term % 40)


class JournalVictim:
    """One life of a controller's journal, used as the engines use it."""

    def __init__(self, directory: Path, power: Power, answers: int, go: int) -> None:
        self._directory, self._answers, self._go = directory, answers, go
        self._chance = random.Random(power.seed)

    def run(self) -> None:
        """Open, report, then add, cut and acknowledge for ever."""
        make_directory(self._directory)
        journal = Journal(self._directory / "journal")
        snapshot = load(self._directory / "snapshot", RaftSnapshot)
        entries = [[index, term, data == command(index, term)] for data, index, term in journal.part(0)]
        self._say("opened", entries, None if snapshot is None else [*snapshot.last[1:], snapshot.state.decode()])
        os.read(self._go, 1)
        if not len(journal):
            journal.add((command(1, 0), 1, 0))
        term = max([each[1] for each in entries], default=0) + 1
        follows = 1 if snapshot is None else snapshot.last[1] + 1
        journal.sync()
        self._said(journal)
        while True:
            self._step(journal, term)
            if self._chance.random() < 0.1 and len(journal) > 3:
                term += 1
                # What a snapshot covers is committed, and never truncated.
                place = max(len(journal) - self._chance.randrange(1, 3), follows - journal[0][1])
                if place < len(journal):
                    self._say("cutting", journal[place][1])
                journal.cut_tail(place)
                self._said(journal)
            if len(journal) > ENTRIES_MAX:
                state = b"to %d" % journal[-1][1]
                save(self._directory / "snapshot", RaftSnapshot(journal[-2], journal[-1], state))
                follows = journal[-1][1] + 1
                journal.cut_head(len(journal) - 2)

    def _step(self, journal: Journal, term: int) -> None:
        last = journal[-1][1]
        count = self._chance.choice((1, 1, 3))
        self._say("trying", [[index, term] for index in range(last + 1, last + 1 + count)])
        for index in range(last + 1, last + 1 + count):
            journal.add((command(index, term), index, term))
        journal.sync()
        self._said(journal)

    def _said(self, journal: Journal) -> None:
        """Acknowledge the journal as it is now."""
        self._say("kept", [[index, term] for _, index, term in journal.part(0)])

    def _say(self, *words: Any) -> None:
        _say(self._answers, *words)


def _say(answers: int, *words: Any) -> None:
    data = memoryview(json.dumps(words).encode() + b"\n")
    while data:
        data = data[os.write(answers, data) :]
