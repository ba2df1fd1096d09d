"""Run schedules: `python -m tests.sim.cluster --schedules N --seed S` with the options below.

A schedule that breaks a rule prints its seed and the command that replays it; `--trace` prints its history. Exit
status: 1 when a rule was broken without a planted bug, or none was broken with one.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from dataclasses import replace

from tests.sim.cluster import plants, role_plants, step_plants, store_plants, stream_plants, term_plants
from tests.sim.cluster.broker import Build
from tests.sim.cluster.schedule import Result, run

PLANTS = plants.PLANTS | plants.SELDOM | stream_plants.PLANTS | role_plants.PLANTS | step_plants.PLANTS
PLANTS |= term_plants.PLANTS | store_plants.PLANTS | store_plants.SELDOM
SHOWN_MAX = 10
PROGRESS_EVERY = 5_000


def told(result: Result, plant: str | None, build: Build | None = None) -> str:
    """What broke, and how to repeat it."""
    build = build or Build()
    again = f"python -m tests.sim.cluster --schedules 1 --seed {result.seed} --trace"
    again += f" --plant {plant}" if plant else " --elects" if build.elects else ""
    again += (" --async-flush" if build.is_async and not plant else "") + (" --store real" if build.is_stored else "")
    return f"seed {result.seed}: {result.detail}\n  replay: {again}"


def main(arguments: list[str] | None = None) -> int:
    """Run the requested schedules."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.cluster", description=__doc__)
    parser.add_argument("--schedules", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0, help="seed of the first schedule; the next ones follow")
    parser.add_argument("--plant", choices=sorted(PLANTS), help="a bug to plant; stops when it is caught")
    parser.add_argument("--elects", action="store_true", help="the brokers elect their master, without controllers")
    parser.add_argument("--store", choices=("model", "real"), default="model", help="what keeps the brokers' logs")
    parser.add_argument("--async-flush", action="store_true", help="brokers count what is written, flushed or not")
    parser.add_argument("--trace", action="store_true", help="tell what happens, event by event")
    asked = parser.parse_args(arguments)
    build = PLANTS[asked.plant] if asked.plant else Build(is_async=asked.async_flush, elects=asked.elects)
    build = replace(build, is_stored=build.is_stored or asked.store == "real")
    broken: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    for number in range(asked.schedules):
        result = run(asked.seed + number, build, trace=asked.trace)
        for name in ("events", "faults", "acknowledged", "epochs"):
            totals[name] += getattr(result, name)
        if result.lines:
            print("\n".join(result.lines))
        if result.rule:
            broken[result.rule] += 1
            if broken.total() <= SHOWN_MAX:
                print(told(result, asked.plant, build), flush=True)
            if asked.plant:
                break
        if (number + 1) % PROGRESS_EVERY == 0:
            print(f"{number + 1} schedules, {broken.total()} violations", flush=True)
    count = number + 1 if asked.schedules else 0
    print(
        f"{count} schedules from seed {asked.seed}: {broken.total()} violations {dict(broken) or ''}, "
        f"{totals['faults']} faults, {totals['epochs']} master epochs, {totals['acknowledged']} messages acknowledged, "
        f"{totals['events']} events"
    )
    return int(bool(broken) != bool(asked.plant))


if __name__ == "__main__":
    sys.exit(main())
