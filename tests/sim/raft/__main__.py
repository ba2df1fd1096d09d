"""Run schedules: `python -m tests.sim.raft --schedules N --seed S [--engine NAME] [--members] [--plant NAME]`.

A schedule that breaks a rule prints its seed and the command that replays it. Exit status: 1 when a rule was broken
without a planted bug, or none was broken with one.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.sim.raft import core_plants, member_plants
from tests.sim.raft.engines import ENGINES
from tests.sim.raft.plants import PLANTS, SELDOM
from tests.sim.raft.schedule import Result, run

SHOWN_MAX = 10
PROGRESS_EVERY = 1_000
IN_MEMORY = Path("/dev/shm")


def told(result: Result, plant: str | None, engine: str = "dledger", *, changing: bool = False) -> str:
    """What broke, and how to see it again."""
    again = f"python -m tests.sim.raft --schedules 1 --seed {result.seed} --engine {engine}"
    again += " --members" if changing else ""
    again += f" --plant {plant}" if plant else ""
    return f"seed {result.seed}: {result.detail}\n  replay: {again}"


def main(arguments: list[str] | None = None) -> int:
    """Run the schedules that were asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.raft", description=__doc__)
    parser.add_argument("--schedules", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="seed of the first schedule; the next ones follow")
    plants = sorted(PLANTS | SELDOM | core_plants.PLANTS | core_plants.SELDOM | member_plants.PLANTS)
    parser.add_argument("--plant", choices=plants, help="a bug to plant; stops when it is caught")
    parser.add_argument("--trace", action="store_true", help="print everything that happens")
    parser.add_argument("--engine", choices=sorted(ENGINES), default="dledger")
    parser.add_argument("--members", action="store_true", help="let the members change (engine dledger)")
    asked = parser.parse_args(arguments)
    if asked.members and asked.engine != "dledger":
        parser.error("the members of the other engine do not change")
    planted = core_plants.PLANTS | core_plants.SELDOM if asked.engine == "dledger" else PLANTS | SELDOM
    planted = planted | member_plants.PLANTS if asked.members else planted
    plant = planted[asked.plant] if asked.plant else None
    logging.getLogger("pysyncobj").setLevel(logging.CRITICAL)
    broken: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    history = hashlib.sha256()
    count = 0
    for seed in range(asked.seed, asked.seed + asked.schedules):
        result = run_in_memory(seed, plant, print if asked.trace else None, asked.engine, changing=asked.members)
        count += 1
        for name in ("answered", "reads", "terms"):
            totals[name] += getattr(result, name)
        faults.update(result.faults)
        history.update(result.digest.encode())
        if result.rule:
            broken[result.rule] += 1
            if broken.total() <= SHOWN_MAX:
                print(told(result, asked.plant, asked.engine, changing=asked.members), flush=True)
            if asked.plant:
                break
        if count % PROGRESS_EVERY == 0:
            print(f"{count} schedules, {broken.total()} violations", flush=True)
    print(
        f"{count} schedules from seed {asked.seed}: {broken.total()} violations {dict(broken) or ''}, "
        f"{faults.total()} faults, {totals['terms']} terms with a leader, {totals['answered']} commands answered, "
        f"{totals['reads']} reads"
    )
    print(", ".join(f"{name} {number}" for name, number in sorted(faults.items())))
    print(f"history {history.hexdigest()}")
    return int(bool(broken) != bool(asked.plant))


def run_in_memory(seed: int, plant=None, trace=None, engine="pysyncobj", *, changing=False) -> Result:
    """A schedule with its files in memory where possible, deleted afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="raft-", dir=IN_MEMORY if IN_MEMORY.is_dir() else None))
    try:
        return run(folder, seed, plant, trace, engine, changing=changing)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
