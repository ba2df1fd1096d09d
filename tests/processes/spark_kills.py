"""`kill -9` of every part of a Spark pipeline at random points of one seed, and an exact accounting at the end.

    python -m tests.processes.spark_kills --kills 20 --seed 1 --master 'local-cluster[2,1,1024]'

Between two kills something must have come through again. The victims come in random order, each kind about as often as
the others; the executors' JVMs are among them when the master has some of its own.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import psutil

from tests.processes.spark_pipeline import Pipeline

PAUSE_S_MAX = 2.0
FLOW_MAX = 1_500
"""A kill comes after at most so many more messages and then so long."""


def kinds(master: str) -> list[str]:
    """The kinds of processes that can be killed."""
    return ["driver", "python", "source", "sink", *(["executor"] if master.startswith("local-cluster") else [])]


def kill(pipeline: Pipeline, kind: str, chance: random.Random) -> str:
    """Kill one process of this kind; returns which."""
    if kind == "driver":
        pipeline.kill_driver()
        pipeline.start_driver()
        return "driver and everything below it"
    if kind in ("source", "sink"):
        broker = pipeline.source if kind == "source" else pipeline.sink
        broker.kill()
        broker.start()
        return f"{kind} broker"
    victims = pipeline.below_driver(kind)
    if not victims:
        return f"no {kind} is there"
    victim = chance.choice(sorted(victims, key=lambda process: process.pid))
    try:
        victim.kill()
    except psutil.NoSuchProcess:
        return f"a {kind} that had just ended"
    return f"one of {len(victims)} {kind} processes"


def rounds(pipeline: Pipeline, kills: int, seed: int, master: str) -> Counter[str]:
    """Kill this many times; returns the number of kills by kind."""
    chance = random.Random(seed)
    done: Counter[str] = Counter()
    order: list[str] = []
    while done.total() < kills:
        if not order:
            order = kinds(master)
            chance.shuffle(order)
        pipeline.flows(chance.randrange(1, FLOW_MAX))
        threading.Event().wait(chance.uniform(0, PAUSE_S_MAX))
        begun, kind = time.monotonic(), order.pop()
        what = kill(pipeline, kind, chance)
        if "process" in what or "broker" in what or "driver" in what:
            done[kind] += 1
        pipeline.flows(1)
        print(f"{done.total():3} {what}: flows again after {time.monotonic() - begun:.1f} s", flush=True)
    return done


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.processes.spark_kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--master", default="local-cluster[2,1,1024]")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="spark-kills-", dir=options.folder) as folder:
        pipeline = Pipeline(Path(folder), options.master)
        try:
            pipeline.start()
            done = rounds(pipeline, options.kills, options.seed, options.master)
            total, repeated = pipeline.account()
        finally:
            pipeline.close()
    print(f"killed {dict(done)}; the query ended by itself {pipeline.failures} times and was started again")
    print(f"{total} rows: each stored once at either end, each taken once with QoS 2; QoS 1 repeated {repeated}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
