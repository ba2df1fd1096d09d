"""Run schedules: `python -m tests.sim.rooms --schedules N --seed S [--plant NAME] [--trace]`.

A schedule that breaks a rule prints its seed and the command that replays it. Exit status: 1 when a rule was broken
without a planted bug, or none was broken with one.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from tests.sim.rooms.plants import PLANTS
from tests.sim.rooms.runs import run_apart
from tests.sim.rooms.schedule import run

SHOWN_MAX = 20
BATCH = 20
"""Schedules that run in one process: it ends without finalizing what its killed processes had under way."""
PROGRESS_EVERY = 1_000


def main(arguments: list[str] | None = None) -> int:
    """Run the schedules that were asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.rooms", description=__doc__)
    parser.add_argument("--schedules", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="seed of the first schedule; the next ones follow")
    parser.add_argument("--plant", choices=sorted(PLANTS), help="a bug to plant; stops when it is caught")
    parser.add_argument("--trace", action="store_true", help="print everything that happens")
    asked = parser.parse_args(arguments)
    plant = PLANTS[asked.plant] if asked.plant else None
    totals, faults, broken, count = Counter[str](), Counter[str](), Counter[str](), 0
    end = asked.seed + asked.schedules
    for first in range(asked.seed, end, BATCH):
        seeds = range(first, min(first + BATCH, end))
        results = [run(seed, trace=print, plant=plant) for seed in seeds] if asked.trace else run_apart(seeds, plant)
        for each in results:
            count += 1
            totals += Counter(
                events=each.events, messages=each.messages, deliveries=each.deliveries, epochs=each.epochs
            )
            faults += each.faults
            if each.rule:
                broken[each.rule] += 1
                again = f"python -m tests.sim.rooms --schedules 1 --seed {each.seed} --trace"
                again += f" --plant {asked.plant}" if asked.plant else ""
                if broken.total() <= SHOWN_MAX:
                    print(f"seed {each.seed}: {each.detail}\n  replay: {again}", flush=True)
        if plant is not None and broken:
            break
        if count % PROGRESS_EVERY == 0:
            print(f"{count} schedules, {broken.total()} violations", flush=True)
    print(f"{count} schedules from seed {asked.seed}: {broken.total()} violations {dict(broken) or ''}")
    print(", ".join(f"{name} {number}" for name, number in sorted(totals.items())))
    print(f"{faults.total()} faults: " + ", ".join(f"{name} {number}" for name, number in sorted(faults.items())))
    return int(bool(broken) != (plant is not None))


if __name__ == "__main__":
    sys.exit(main())
