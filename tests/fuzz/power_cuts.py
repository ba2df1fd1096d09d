"""`python -m tests.fuzz.power_cuts --cycles 300 --seed N`: cut the power of stores, replicas, journals.

One cycle is one process, whose calls below a directory are recorded by a preloaded library (`recorder.c`) until it dies
at some call. `disk_model` then chooses what of all that was not flushed has reached the disk, and the next process
starts from there: everything acknowledged must be in it, in order and with the same bytes, nothing else may be, and
nothing may look damaged. Some processes are only killed, so that the next one finds data that was not flushed.
`--plant NAME` leaves one flush out; then the command must fail. With LIGHTMQ_PURE=1 the core is the uncompiled one.
Needs Linux and a C compiler.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.fuzz.power_lanes import JournalLane, PowerLane, ReplicaLane, StoreLane
from tests.fuzz.power_plants import JOURNAL, REPLICA, STORE

CYCLES_PER_LANE = 15
SOURCE = Path(__file__).with_name("recorder.c")
ARMED = "LIGHTMQ_RECORDER"


def compiled() -> Path:
    """Compile the library into a new directory. Raises OSError, CalledProcessError."""
    target = Path(tempfile.mkdtemp(prefix="recorder-")) / "recorder.so"
    command = [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-O2", "-o", target, SOURCE, "-ldl", "-lpthread"]
    subprocess.run(command, check=True)
    return target


LANES: tuple[type[PowerLane], ...] = (StoreLane, StoreLane, ReplicaLane, JournalLane)
"""The kinds of lanes, in turn."""


def run(
    cycles: int, seed: int, only: int | None, lanes: tuple[type[PowerLane], ...], place: Path | None
) -> Counter[str]:
    """Run lanes until `cycles` are done. Raises what a judge raises, after printing how to repeat it."""
    ends: Counter[str] = Counter()
    done, number = 0, only or 0
    while done < cycles:
        root = Path(tempfile.mkdtemp(prefix="power-cuts-", dir=place))
        lane = lanes[number % len(lanes)](root, f"{seed}/{number}")
        try:
            for _ in range(min(CYCLES_PER_LANE, cycles - done)):
                lane.run_cycle()
                done += 1
        except BaseException:
            print(f"FAILED in cycle {done}; repeat its lane with --seed {seed} --lane {number}; kept: {root}")
            raise
        ends += lane.ends
        shutil.rmtree(root)
        number += 1
        if only is not None:
            break
    return ends


def preload() -> None:
    """Start this command again with the library in front of libc."""
    library = compiled()
    environment = {**os.environ, "LD_PRELOAD": str(library), ARMED: str(library.parent)}
    os.execve(sys.executable, [sys.executable, "-m", "tests.fuzz.power_cuts", *sys.argv[1:]], environment)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.power_cuts", description=__doc__.splitlines()[0])
    parser.add_argument("--cycles", type=int, default=300)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--lane", type=int, help="only this lane")
    parser.add_argument("--plant", choices=sorted(STORE | REPLICA | JOURNAL), help="a flush to leave out")
    parser.add_argument("--directory", type=Path, help="where the files are made")
    options = parser.parse_args()
    if ARMED not in os.environ:
        preload()
    shutil.rmtree(os.environ[ARMED])
    lanes = LANES
    if options.plant:
        (STORE | REPLICA | JOURNAL)[options.plant]()
        lanes = (JournalLane if options.plant in JOURNAL else ReplicaLane if options.plant in REPLICA else StoreLane,)
    memory = Path("/dev/shm")
    place = options.directory or (memory if os.access(memory, os.W_OK) else None)
    begun = time.monotonic()
    ends = run(options.cycles, options.seed, options.lane, lanes, place)
    print(f"seed {options.seed}: {options.cycles} cycles in {time.monotonic() - begun:.1f} s, nothing lost")
    print(", ".join(f"{name}: {count}" for name, count in sorted(ends.items())))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
