"""One store, or one journal, and the power cuts it goes through: what was promised must be on the disk."""

from __future__ import annotations

import contextlib
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.fuzz.crash_fuzz import Life
from tests.fuzz.damage import image
from tests.fuzz.disk_model import Disk
from tests.fuzz.judge import LEDGER, Judge
from tests.fuzz.power_victims import Power, live_journal, live_store
from tests.fuzz.victim import Orders
from tests.sim.log_judge import marked, proved_durable

CALLS_MAX = 2_500
OPENING_CALLS = 120
KILLS = 0.3
"""Share of lives after which the power stays: what the next one finds need not be on the disk."""
EXPECTED = ("torn_tail_cut", "short_log_file_filled")
"""Warnings of a start that a power cut explains; it explains no damage of anything that was flushed."""


class PowerLane:
    """A disk below `root`, and lives on it, each of which ends when the power goes."""

    live: Callable[[Path, Power, int, int], None]

    def __init__(self, root: Path, seed: str) -> None:
        self.chance = random.Random(seed)
        self._calls = root / "calls"
        (root / "disk").mkdir()
        self._disk = Disk(root / "disk")
        self.ends: Counter[str] = Counter()
        self.words: list[list[Any]] = []

    def orders(self) -> Orders | None:
        """What the process is told to do."""
        return None

    def check(self, said: Iterator[list[Any]]) -> bool:
        """Judge what the process says of its recovery; False when it died before it said so."""
        raise NotImplementedError

    def promised(self) -> None:
        """Look at the disk just before the power goes."""

    def left(self) -> None:
        """Look at what the disk holds afterwards."""

    def cycle(self, directory: Path, live: Callable[[Path, Any, int, int], None]) -> None:
        """One life, and the disk after it."""
        chance = self.chance
        cut_at = chance.randrange(1, OPENING_CALLS if chance.random() < 0.35 else CALLS_MAX)
        descriptor = os.open(self._calls, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        sync_us = chance.choice((0, 0, 300, 2_000))
        power = Power(self._disk.root, descriptor, cut_at, sync_us, chance.randrange(1 << 30), self.orders())
        try:
            life = Life(directory, power, live)
            try:
                said = life.words()
                if self.check(said):
                    with contextlib.suppress(BrokenPipeError):  # it is dead already
                        life.go()
                    for word in said:
                        self.heard(word)
            finally:
                life.kill()
        finally:
            os.close(descriptor)
        self.promised()
        self.ends["calls"] += self._disk.replay(self._calls.read_bytes())
        if chance.random() < KILLS:
            self._disk.killed()
            self.ends["kills"] += 1
            return
        self.ends[how := self._disk.cut(chance)] += 1
        try:
            self.left()
        except AssertionError as error:
            error.add_note(how)
            raise

    def heard(self, word: list[Any]) -> None:
        """Take in what the process says while it works."""
        raise NotImplementedError


class StoreLane(PowerLane):
    """A store whose data directory and its parents are made by its first start."""

    def __init__(self, root: Path, seed: str) -> None:
        super().__init__(root, seed)
        self._directory = self._disk.root / "a" / "b" / "data"
        self._workload = self.chance.randrange(1 << 30)
        self._judge = Judge(self._workload)
        self._flush = self.chance.choice(("sync", "sync", "sync", "async"))
        self._segment = self.chance.choice((8, 16, 64)) * 1024
        self._number = -1
        self._must_hold = 0
        self._marked = (0, 0)
        self._image: dict[int, bytes] = {}

    def run_cycle(self) -> None:
        """One life."""
        self.cycle(self._directory, live_store)

    def orders(self) -> Orders:
        """Small files, so that every kind of file comes and goes in one life."""
        chance = self.chance
        settings = {
            "segment_size_bytes": self._segment, "index_tail_entries": chance.choice((64, 256)), "index_merge_runs": 3,
            "retention_ms": 0, "retention_size_bytes": chance.choice((100_000, 300_000)), "ballast_size_bytes": 0,
            "free_space_bytes_min": 0, "snapshot_log_bytes": chance.choice((20_000, 100_000)),
            "flush": self._flush, "flush_interval_ms": 3, "carry_entries_max": chance.choice((5, 2000)),
        }  # fmt: skip
        close_after = chance.randrange(1, 60) if chance.random() < 0.15 else 0
        return Orders(chance.randrange(1 << 30), self._workload, settings, close_after=close_after)

    def check(self, said: Iterator[list[Any]]) -> bool:
        """Hold what was recovered against what was promised before the power went."""
        for word in said:
            if word[0] == "opened":
                self._opened(word[1])
                return True
            assert word[0] in ("marked", "event"), f"the start ended with {word}"
            self.heard(word)
        return False

    def _opened(self, told: dict[str, Any]) -> None:
        now = image(self._directory, self._must_hold)
        for base, data in self._image.items():
            if base >= told["begin"]:
                found = now.get(base, b"")
                assert found == data, f"confirmed up to {self._must_hold}: {_difference(base, data, found)}"
        self._judge.check(self._directory, told, self._number)
        self._must_hold = told["end"]
        for kind, key, value, _ in told["state"]:
            if (kind, key) == (LEDGER, "sink"):
                self._number = int(value)
        self.ends["judged records"] = self._judge.records

    def heard(self, word: list[Any]) -> None:
        """Note what is confirmed, and up to where the store says that its log is durable."""
        assert word[0] != "lost", "the store failed"
        assert word[0] != "event" or word[1].startswith(EXPECTED), (
            f"a power cut alone, and the store tells of {word[1]}"
        )
        if word[0] == "confirmed" and self._flush == "sync":
            self._must_hold, self._number = word[1], word[2]
        elif word[0] == "marked":
            self._marked = max(self._marked, (word[1], word[2]))
        elif word[0] == "closed":
            self._must_hold = word[1]
        self.ends[word[0]] += 1

    def promised(self) -> None:
        """Keep the confirmed bytes; files that expire later are not asked for."""
        self._image = image(self._directory, self._must_hold) if (self._directory / "log").exists() else {}

    def left(self) -> None:
        """A mark that was noted stays noted."""
        if not self._marked[1]:
            return
        noted = marked(self._directory)
        assert noted >= self._marked, f"DURABLE says {noted}, {self._marked} was noted"
        assert proved_durable(self._directory) >= self._marked[0]


class JournalLane(PowerLane):
    """A controller's journal and snapshot."""

    def __init__(self, root: Path, seed: str) -> None:
        super().__init__(root, seed)
        self._kept: list[list[int]] = []
        self._trying: list[list[int]] = []

    def run_cycle(self) -> None:
        """One life."""
        self.cycle(self._disk.root / "controller", live_journal)

    def check(self, said: Iterator[list[Any]]) -> bool:
        """What was kept is there up to the end, then perhaps some of what was tried, then nothing."""
        word = next(said, None)
        if word is None:
            return False
        assert word[0] == "opened", f"the start ended with {word}"
        _, entries, snapshot = word
        assert all(sound for _, _, sound in entries), "an entry that nobody wrote"
        found = [[index, term] for index, term, _ in entries]
        meant = self._kept + self._trying
        if snapshot is not None:
            assert snapshot[2] == f"to {snapshot[0]}"
            assert snapshot[:2] in found, f"the journal does not follow the snapshot: {found} and {snapshot}"
        first = found[0][0] if found else 1
        expected = [each for each in meant if each[0] >= first]
        assert found == expected[: len(found)], f"{found} instead of {expected}"
        last = self._kept[-1][0] if self._kept else 0
        assert (found[-1][0] if found else 0) >= last, f"entries up to {last} were kept, found {found}"
        assert snapshot is not None or not self._kept or first == self._kept[0][0] == 1, "the head was cut too soon"
        self._kept, self._trying = found, []
        return True

    def heard(self, word: list[Any]) -> None:
        """Note what was acknowledged."""
        self.ends[word[0]] += 1
        if word[0] == "trying":
            self._trying = word[1]
        elif word[0] == "cutting":
            self._trying = [each for each in self._kept if each[0] >= word[1]]
            self._kept = [each for each in self._kept if each[0] < word[1]]
        elif word[0] == "kept":
            first = self._kept[0][0] if self._kept else 1
            older = [each for each in self._kept if first <= each[0] < word[1][0][0]]
            self._kept, self._trying = older + word[1], []


def _difference(base: int, data: bytes, found: bytes) -> str:
    first = next((at for at, pair in enumerate(zip(data, found, strict=False)) if pair[0] != pair[1]), len(found))
    return f"file {base} differs from byte {first} on, {len(found)} of {len(data)} bytes"
