"""Run schedules: `python -m tests.sim.whole --schedules N --seed S [--elects] [--plant NAME] [--trace]`.

A schedule that breaks a rule prints its seed and the command that replays it. Exit status: 1 when a rule was broken
without a planted bug, or none was broken with one.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.sim.whole.plants import PLANTS
from tests.sim.whole.runs import run_apart
from tests.sim.whole.schedule import run

HASH_SEED = "0"
"""Of the process that runs the schedules, whatever it was begun with."""


def main(arguments: list[str] | None = None) -> int:
    """Run the schedules that were asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.whole", description=__doc__)
    parser.add_argument("--schedules", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="seed of the first schedule; the next ones follow")
    parser.add_argument("--elects", action="store_true", help="a group that elects its master")
    parser.add_argument("--plant", choices=sorted(PLANTS), help="a bug to plant; stops when it is caught")
    parser.add_argument("--trace", action="store_true", help="print everything that happens")
    asked = parser.parse_args(arguments)
    plant = PLANTS[asked.plant] if asked.plant else None
    totals, faults, broken = Counter[str](), Counter[str](), Counter[str]()
    history, count = hashlib.sha256(), 0
    for seed in range(asked.seed, asked.seed + asked.schedules):
        if asked.trace:
            result = run(seed, elects=asked.elects, trace=print, plant=plant)
        else:
            result = run_apart(seed, elects=asked.elects, plant=plant)
        count += 1
        history.update(result.digest.encode())
        totals += Counter(events=result.events, acknowledged=result.acknowledged, epochs=result.epochs)
        faults += result.faults
        if result.rule:
            broken[result.rule] += 1
            again = f"python -m tests.sim.whole --schedules 1 --seed {seed}" + (" --elects" if asked.elects else "")
            again += f" --plant {asked.plant}" if asked.plant else ""
            events = Path(tempfile.gettempdir(), f"lightmq-whole-{seed}.txt")
            events.write_text("\n".join(result.lines))
            print(f"seed {seed}: {result.detail}\n  history: {events}\n  replay: {again} --trace", flush=True)
            if plant is not None:
                break
    print(f"{count} schedules from seed {asked.seed}: {broken.total()} violations {dict(broken) or ''}")
    print(", ".join(f"{name} {number}" for name, number in sorted(totals.items())))
    print(f"{faults.total()} faults: " + ", ".join(f"{name} {number}" for name, number in sorted(faults.items())))
    print(f"history {history.hexdigest()}")
    return int(bool(broken) != (plant is not None))


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:  # sets of names have an order of their own in each process
        command = [sys.executable, "-m", "tests.sim.whole", *sys.argv[1:]]
        os.execve(sys.executable, command, os.environ | {"PYTHONHASHSEED": HASH_SEED})
    sys.exit(main())
