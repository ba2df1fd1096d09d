"""`python -m tests.fuzz.crash_fuzz --cycles 1000 --seed N`: kill a store again and again and judge what it recovers.

One cycle is one process (a fork, so that a start costs milliseconds): it opens the store, reports what it recovered, is
judged, writes, and ends by kill -9 at some moment, at a fault point, after EIO or ENOSPC, or properly. Then its files
are damaged behind the last fdatasync; sometimes below, which must be reported and never cut. A lane is one directory
with one configuration for some twenty cycles; a failure prints what repeats its lane and keeps the directory.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.fuzz.damage import KINDS, hurt, hurt_metadata, image
from tests.fuzz.judge import Judge
from tests.fuzz.rot import Rot
from tests.fuzz.victim import Orders, live
from tests.sim.log_judge import proved_durable, read_log

CYCLES_PER_LANE = 20
ANSWER_S = 60
POINTS = ("log.write", "log.fsync", "log.allocate", "index.write", "index.manifest")
DISK_BYTES = 1_500_000
"""Size of the small file system of a lane that really runs full."""


class Life:
    """A running victim and its output."""

    def __init__(self, directory: Path, orders: Any, live: Callable[[Path, Any, int, int], None] = live) -> None:
        self._answers, answers = os.pipe()
        go, self._go = os.pipe()
        sys.stdout.flush()
        self.process = os.fork()
        if self.process == 0:
            os.close(self._answers)
            os.close(self._go)
            live(directory, orders, answers, go)
        os.close(answers)
        os.close(go)
        self._rest = b""
        self.counts: Counter[str] = Counter()
        self.confirmed_end = 0
        self.confirmed_number = -1
        self.status = 0
        """The status of the process from waitpid."""

    def words(self, seconds: float = ANSWER_S) -> Iterator[list[Any]]:
        """Yield its output until it is silent for `seconds` or ends."""
        while True:
            while b"\n" in self._rest:
                line, _, self._rest = self._rest.partition(b"\n")
                yield self._take(json.loads(line))
            if not select.select([self._answers], [], [], seconds)[0]:
                assert seconds < ANSWER_S, "the process hangs"
                return
            data = os.read(self._answers, 1 << 20)
            if not data:
                return
            self._rest += data

    def _take(self, said: list[Any]) -> list[Any]:
        self.counts[said[0]] += 1
        assert said[0] != "broken", said[1]
        if said[0] == "confirmed":
            assert not self.counts["lost"], "confirmed after the store had failed"
            self.confirmed_end, self.confirmed_number = said[1], said[2]
        return said

    def go(self) -> None:
        """Let it write."""
        os.write(self._go, b"g")

    def kill(self) -> None:
        """kill -9, take its remaining output, and wait for its end."""
        os.kill(self.process, signal.SIGKILL)
        for _ in self.words():
            pass
        self.status = os.waitpid(self.process, 0)[1]
        os.close(self._answers)
        os.close(self._go)


class Lane:
    """One store and its lives."""

    def __init__(self, directory: Path, seed: str, *, full: bool) -> None:
        self.directory = directory
        self.chance = random.Random(seed)
        self.full = full
        self.judge = Judge(workload := self.chance.randrange(1 << 30))
        self._workload = workload
        self._flush = self.chance.choice(("sync", "sync", "async"))
        self._segment = self.chance.choice((8, 16, 64)) * 1024
        self._number = -1
        self._must_hold = 0
        self._opened = False
        self.ends: Counter[str] = Counter()

    def cycle(self) -> None:
        """One life and what follows it."""
        if self._must_hold and self.chance.random() < 0.15:
            self._rot()
        before = image(self.directory, self._must_hold) if self._must_hold else {}
        way = self._way()
        orders = self._orders(way)
        life = Life(self.directory, orders)
        try:
            try:
                if way == "recovery":
                    self._listen(life, self.chance.random() * 0.02)
                else:
                    self._live(life, way, before)
            finally:
                life.kill()
        except AssertionError as error:
            error.add_note(f"the process ended with status {life.status} in a life of the kind {way!r}")
            raise
        self.ends[way] += 1
        self._opened = bool(life.counts["opened"])
        self._number = max(self._number, life.confirmed_number)
        self._after(life)

    def _way(self) -> str:
        ways = ["count", "time", "fault", "recovery", "eio", "enospc", "close"]
        return self.chance.choices(ways, (5, 5, 5, 2, 2, 1 + 2 * self.full, 1))[0]

    def _orders(self, way: str) -> Orders:
        chance = self.chance
        settings = {
            "segment_size_bytes": self._segment, "record_size_bytes_max": 4096,
            "first_segment_size_bytes": 4096, "index_tail_entries": chance.choice((64, 256)), "index_merge_runs": 3,
            "retention_ms": 0, "retention_size_bytes": chance.choice((150_000, 400_000)), "ballast_size_bytes": 0,
            "free_space_bytes_min": 100_000 if self.full else 0, "snapshot_log_bytes": chance.choice((20_000, 100_000)),
            "flush": self._flush, "flush_interval_ms": 3, "carry_entries_max": chance.choice((5, 2000)),
        }  # fmt: skip
        if self.full and chance.random() < 0.5:
            settings["retention_size_bytes"] = 0
        orders = Orders(chance.randrange(1 << 30), self._workload, settings, slow_flush=chance.random() < 0.5)
        if way in ("fault", "recovery"):
            orders.fault = (chance.choice(POINTS), "kill", chance.randrange(40 if way == "fault" else 2))
            orders.early = way == "recovery"
        elif way == "eio":
            orders.fault = ("log.fsync", "EIO", chance.randrange(30))
        elif way == "enospc":
            orders.fault = (chance.choice(("log.write", "log.allocate", "index.write")), "ENOSPC", chance.randrange(20))
        orders.close_after = chance.randrange(1, 60) if way == "close" else 0
        return orders

    def _listen(self, life: Life, seconds: float) -> None:
        """Listen to it for a time that may end in the middle of its recovery."""
        until = time.monotonic() + seconds
        for _ in life.words(seconds):
            if time.monotonic() > until:
                return

    def _live(self, life: Life, way: str, before: dict[int, bytes]) -> None:
        words = life.words()
        said = next(words, ["nothing"])
        if said[0] == "refused" and self.full:
            self._grow()
            return
        assert said[0] == "opened", said
        self._compare(before, said[1]["begin"])
        self.judge.check(self.directory, said[1], self._number)
        life.go()
        enough = self.chance.randrange(1, 80)
        if way == "time":
            self._listen(life, self.chance.random() * 0.03)
            return
        for word in words:
            stuck = word[0] == "full" and life.counts["full"] > 20
            if stuck or (way in ("count", "enospc") and life.counts["confirmed"] >= enough):
                return
            if way == "fault" and life.counts["confirmed"] > 400:
                return  # the point was never reached

    def _compare(self, before: dict[int, bytes], begin: int) -> None:
        """The durable bytes are unchanged, except for files that expired."""
        now = image(self.directory, self._must_hold)
        for base, data in before.items():
            if base >= begin:
                assert now.get(base) == data, f"durable bytes of file {base} have changed"

    def _grow(self) -> None:
        """Free space on a full disk, as an administrator would."""
        subprocess.run(["mount", "-o", f"remount,size={4 * DISK_BYTES}", self.directory.parent], check=True)

    def _after(self, life: Life) -> None:
        """Damage what may be lost."""
        durable = proved_durable(self.directory) if (self.directory / "log").exists() else 0
        written = max(durable, life.confirmed_end, self._must_hold)
        if self._flush == "sync":
            durable = written
        self._must_hold = written
        choice = self.chance.random()
        if choice < 0.35 and durable:
            records = read_log(self.directory)
            high = max(durable, records[-1].end if records else 0) + 4096
            for _ in range(self.chance.choice((1, 1, 3))):
                damage = hurt(self.directory, self.chance, durable, high, self.chance.choice(KINDS))
                if damage and damage.position < written:
                    self._must_hold = written = durable
                    self._number = -1
                    self.ends["unsynced gone"] += 1
                self.ends["damage above"] += damage is not None
        elif choice < 0.45 and durable:
            hurt_metadata(self.directory, self.chance)
            self.ends["metadata"] += 1

    def _rot(self) -> None:
        """Damage durable data, in copies: it must be reported, nothing may be cut, all else must stay readable."""
        rot = Rot(self.directory, self.chance, self._orders("count"), listen)
        if said := rot.run(self.judge.ends if self._opened else {}):
            self.ends[f"rot {said}"] += 1


def listen(directory: Path, orders: Orders) -> list[list[Any]]:
    """One undisturbed life: all its output."""
    life = Life(directory, orders)
    try:
        said = list(life.words())
    finally:
        life.kill()
    return said or [["nothing"]]


def run(cycles: int, seed: int, only: int | None, place: Path | None) -> Counter[str]:
    """Run lanes until `cycles` are done. Raises what a judge raises, after printing how to repeat it."""
    ends: Counter[str] = Counter()
    done, number = 0, only or 0
    while done < cycles:
        root = Path(tempfile.mkdtemp(prefix="crash-fuzz-", dir=place))
        full = number % 5 == 4 and mounted(root)
        lane = Lane(root / "data", f"{seed}/{number}", full=full)
        try:
            for _ in range(min(CYCLES_PER_LANE, cycles - done)):
                lane.cycle()
                done += 1
        except BaseException:
            print(f"FAILED in cycle {done}; repeat its lane with --seed {seed} --lane {number}; kept: {root}")
            raise
        ends += lane.ends
        ends["judged records"] += lane.judge.records
        ends["lanes on a full disk"] += full
        if full:
            subprocess.run(["umount", "-l", root], check=True)
        shutil.rmtree(root)
        number += 1
        if only is not None:
            break
    return ends


def mounted(root: Path) -> bool:
    """Put a small file system over `root` where permitted."""
    if os.geteuid() != 0:
        return False
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(root)]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.crash_fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--cycles", type=int, default=200)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--lane", type=int, help="only this lane")
    parser.add_argument("--directory", type=Path, help="where the stores are made")
    options = parser.parse_args()
    memory = Path("/dev/shm")
    place = options.directory or (memory if os.access(memory, os.W_OK) else None)
    begun = time.monotonic()
    ends = run(options.cycles, options.seed, options.lane, place)
    print(f"seed {options.seed}: {options.cycles} cycles in {time.monotonic() - begun:.1f} s, nothing lost")
    print(", ".join(f"{name}: {count}" for name, count in sorted(ends.items())))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
