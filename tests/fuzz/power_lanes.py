"""One store, replica or journal, and the power cuts it goes through: everything acknowledged must be on the disk."""

from __future__ import annotations

import contextlib
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.fuzz.crash_fuzz import Life
from tests.fuzz.damage import image
from tests.fuzz.disk_model import Disk
from tests.fuzz.judge import LEDGER, Judge, replay
from tests.fuzz.power_histories import Histories
from tests.fuzz.power_replica import ReplicaOrders
from tests.fuzz.power_victims import Power, live_journal, live_replica, live_store
from tests.fuzz.victim import Orders
from tests.sim.log_judge import Seen, check_dense, marked, proved_durable, read_log

CALLS_MAX = 2_500
OPENING_CALLS = 120
KILLS = 0.3
"""Share of lives after which the power stays: what the next one finds need not be on the disk."""
EXPECTED = ("torn_tail_cut", "short_log_file_filled")
"""Warnings of a start that a power cut explains; it explains no damage of anything that was flushed."""


CUTS = ("log_cut", "log_truncated", "log_reset")
"""Warnings of a replica that takes its master's log for the truth."""
DAMAGE = ("log_damage", "damaged_log_given_up", "keys_not_indexed", "key_index_rebuilt")
DAMAGES = 0.15
"""Share of power cuts after which a byte that was flushed has changed."""


class PowerLane:
    """A disk below `root`, and lives on it, each of which ends with a power cut."""

    live: Callable[[Path, Power, int, int], None]

    def __init__(self, root: Path, seed: str) -> None:
        self.chance = random.Random(seed)
        self._calls = root / "calls"
        (root / "disk").mkdir()
        self._disk = Disk(root / "disk")
        self.ends: Counter[str] = Counter()
        self.words: list[list[Any]] = []

    def orders(self) -> Any:
        """The orders for the process."""
        return None

    def run_cycle(self) -> None:
        """One life and what follows it."""
        raise NotImplementedError

    def check(self, said: Iterator[list[Any]]) -> bool:
        """Judge what the process reports of its recovery; False when it died before the report."""
        raise NotImplementedError

    def promised(self) -> None:
        """Inspect the disk just before the power is cut."""

    def left(self) -> None:
        """Inspect the disk afterwards."""

    def cycle(self, directory: Path, live: Callable[[Path, Any, int, int], None]) -> bool:
        """One life, and the disk after it; returns whether the power was cut."""
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
            return False
        self.ends[how := self._disk.cut(chance)] += 1
        try:
            self.left()
        except AssertionError as error:
            error.add_note(how)
            raise
        return True

    def heard(self, word: list[Any]) -> None:
        """Process the output of a working process."""
        raise NotImplementedError


class StoreLane(PowerLane):
    """A store whose data directory and its parents are created by its first start."""

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
        """Small files, so that files of every kind are created and deleted in one life."""
        chance = self.chance
        settings = {
            "segment_size_bytes": self._segment, "index_tail_entries": chance.choice((64, 256)), "index_merge_runs": 3,
            "retention_ms": 0, "ballast_size_bytes": 0,
            "retention_size_bytes": max(chance.choice((100_000, 300_000)), 3 * self._segment),
            "free_space_bytes_min": 0, "snapshot_log_bytes": chance.choice((20_000, 100_000)),
            "flush": self._flush, "flush_interval_ms": 3, "carry_entries_max": chance.choice((5, 2000)),
        }  # fmt: skip
        close_after = chance.randrange(1, 60) if chance.random() < 0.15 else 0
        return Orders(chance.randrange(1 << 30), self._workload, settings, close_after=close_after)

    def check(self, said: Iterator[list[Any]]) -> bool:
        """Compare what was recovered with what was acknowledged before the power cut."""
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
        """Record what is confirmed, and up to where the store reports its log as durable."""
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
        """Keep the confirmed bytes; files that expire later are not required."""
        self._image = image(self._directory, self._must_hold) if (self._directory / "log").exists() else {}

    def left(self) -> None:
        """A recorded mark stays recorded."""
        if not self._marked[1]:
            return
        noted = marked(self._directory)
        assert noted >= self._marked, f"DURABLE says {noted}, {self._marked} was noted"
        assert proved_durable(self._directory) >= self._marked[0]


class ReplicaLane(PowerLane):
    """A replica of a group whose masters change; now and then its disk damages what was flushed."""

    def __init__(self, root: Path, seed: str) -> None:
        super().__init__(root, seed)
        self._directory = self._disk.root / "a" / "data"
        self._masters = Histories(root, f"{seed}/masters")
        self._newest = 0
        self._logs: set[int] = set()
        """Masters of whose logs its own may be the beginning."""
        self._must_hold = 0
        self._hurt: tuple[int, int] | None = None
        """Position of a damaged byte and which bits of it, until the log is cut there."""
        self._segment = self.chance.choice((8, 16)) * 1024

    def run_cycle(self) -> None:
        """One life."""
        if self.cycle(self._directory, live_replica) and self.chance.random() < DAMAGES:
            self._damage()

    def orders(self) -> ReplicaOrders:
        """The masters it follows, and for how long."""
        chance = self.chance
        settings = {
            "segment_size_bytes": self._segment, "record_size_bytes_max": 4096, "first_segment_size_bytes": 4096,
            "index_tail_entries": chance.choice((64, 256)), "index_merge_runs": chance.choice((3, 50)),
            "retention_ms": 0, "retention_size_bytes": 60_000, "ballast_size_bytes": 0, "free_space_bytes_min": 0,
            "snapshot_log_bytes": chance.choice((20_000, 100_000)),
        }  # fmt: skip
        masters = []
        for _ in range(chance.choice((1, 1, 2, 3))):
            self._newest += chance.random() < 0.5
            masters.append((self._newest, self._masters.at(self._newest)))
        steps_max = chance.choice((0, 1, 2, chance.randrange(3, 80), 1 << 30))
        return ReplicaOrders(settings, masters, steps_max, self._hurt is not None, chance.random() < 0.2)

    def check(self, said: Iterator[list[Any]]) -> bool:
        """Compare what was recovered with what was acknowledged before."""
        for word in said:
            if word[0] == "opened":
                self._opened(word[1])
                return True
            assert word[0] == "event", f"the start ended with {word}"
            self.heard(word)
        return False

    def _opened(self, told: dict[str, Any]) -> None:
        begin, end = told["begin"], told["end"]
        log = b"".join(each for _, each in sorted(image(self._directory, 1 << 62).items()))
        found, rest = bytearray(log[: end - begin]), log[end - begin :]
        if self._hurt is not None and begin <= self._hurt[0] < end:
            found[self._hurt[0] - begin] ^= self._hurt[1]
        whose = [each for each in map(self._masters.at, sorted(self._logs)) if each.data[begin:end] == found]
        assert whose or not found, f"the log from {begin} to {end} is no beginning of those of {self._logs}"
        assert end >= self._must_hold, f"{self._must_hold} was acknowledged, the log ends at {end}"
        assert not rest.strip(b"\0"), f"there is something behind the end {end}"
        assert told["kept"] == end, (told["kept"], end)
        if self._hurt is not None and end <= self._hurt[0]:
            self._hurt = None  # the power was cut after a truncation, before a master was followed again
        if self._hurt is None:
            check_made(read_log(self._directory), told)
        self.ends["judged bytes"] += len(found)

    def heard(self, word: list[Any]) -> None:
        """Record what is acknowledged, and what of it is given up before a truncation."""
        self.ends[word[0]] += 1
        if word[0] == "event":
            expected = (*EXPECTED, *CUTS, *(DAMAGE if self._hurt is not None else ()))
            assert word[1].startswith(expected), f"a power cut alone, and the replica tells of {word[1]}"
        elif word[0] == "follows":
            self._logs.add(word[1])
        elif word[0] == "cutting":
            self._must_hold = min(self._must_hold, word[1])
        elif word[0] == "ready":
            self._logs, self._hurt = {word[1]}, None
        elif word[0] == "acked":
            self._must_hold = word[2]

    def _damage(self) -> None:
        """Change a byte of what was acknowledged; its group and all after it can be fetched from the master again."""
        files = image(self._directory, self._must_hold) if self._must_hold and len(self._logs) == 1 else {}
        if self._hurt is not None or not any(files.values()):
            return
        base = self.chance.choice([base for base, data in files.items() if data])
        at, mask = self.chance.randrange(len(files[base])), 1 << self.chance.randrange(8)
        self._disk.flip(self._directory / "log" / f"{base:020d}", at, mask)
        self._hurt = base + at, mask
        (log,) = map(self._masters.at, self._logs)
        self._must_hold = max([0, *(each for each in log.groups if each <= base + at)])
        self.ends["damages"] += 1


def check_made(records: list[Seen], told: dict[str, Any]) -> None:
    """Epochs, queues and state of a replica are those of its log alone."""
    epochs = told["epochs"]
    assert all(before < after for pair in pairwise(epochs) for before, after in zip(*pair, strict=True)), epochs
    for seen in records:
        wrote = [0, *(epoch for epoch, start in epochs if start <= seen.position)]
        assert wrote[-1] == seen.epoch, f"epoch {seen.epoch} wrote {seen.position}, listed are {epochs}"
    ends = check_dense(records)
    places: dict[int, list[tuple[int, int]]] = {}
    for seen in records:
        for queue, offset in seen.dispatch:
            places.setdefault(queue, []).append((offset, seen.position))
    for key, (name, _, high, following, positions) in told["queues"].items():
        logged = places.get(int(key), [])
        shown = [position for offset, position in logged if offset < high]
        assert positions == shown, f"index of {name} differs from the log"
        assert not logged or following == ends[int(key)], (name, following)
    state = replay(records)
    shown_state = {
        (kind, key.encode("latin-1")): (value.encode("latin-1"), position)
        for kind, key, value, position in told["state"]
    }
    # Changes from before the beginning of the log are known until they are appended again, which a truncation may undo.
    older = {key for key, (_, position) in shown_state.items() if position < told["begin"] and key not in state}
    keys = (state.keys() | shown_state.keys()) - older
    wrong = [key for key in keys if state.get(key) != shown_state.get(key)]
    assert not wrong, f"log/store say {[(key, state.get(key), shown_state.get(key)) for key in wrong[:3]]}"


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
        """What was kept is there up to its end, then perhaps some of what was tried, then nothing."""
        word = next(said, None)
        if word is None:
            return False
        assert word[0] == "opened", f"the start ended with {word}"
        _, entries, snapshot = word
        assert all(sound for _, _, sound in entries), "an entry that was never written"
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
        """Record what was acknowledged."""
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
