"""`kill -9` of controllers again and again, with an exact account of every decision they answered.

Each cycle kills the leader, a follower, a majority or all of them at a random moment while clients take broker ids,
starts them again and waits until every client continues. Snapshots are taken every few entries, so that some kills hit
them.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.processes.controllers import Controllers, IdTaker, known_ids

CLIENTS = 4
PAUSE_S_MAX = 0.4
KINDS = ("leader", "leader", "follower", "majority", "all")
SNAPSHOT_ENTRIES = 20


class Account:
    """What was killed, and how long the clients waited."""

    def __init__(self) -> None:
        self.kills: Counter[str] = Counter()
        self.processes = 0
        self.failovers: list[float] = []

    def text(self) -> str:
        """On one line."""
        waits = sorted(self.failovers) or [0.0]
        middle, most = waits[len(waits) // 2], waits[-1]
        return (
            f"{self.kills.total()} kills ({dict(self.kills)}, {self.processes} processes); leader killed to first "
            f"decision: p50 {middle:.2f} s, max {most:.2f} s of {len(self.failovers)}"
        )


async def first_decision_after(takers: list[IdTaker], moment: float) -> float:
    """Seconds from a moment to the first answer to a request sent after it."""
    async with asyncio.timeout(60):
        while True:
            done = [answered for taker in takers for asked, answered in taker.times[-3:] if answered > moment]
            if done:
                return min(done) - moment
            await asyncio.sleep(0.001)


async def cycle(controllers: Controllers, takers: list[IdTaker], chance: random.Random, account: Account) -> None:
    """One kill and its recovery."""
    await asyncio.sleep(chance.uniform(0, PAUSE_S_MAX))
    kind = chance.choice(KINDS)
    leader = await controllers.leader()
    others = [each for each in controllers.processes if each is not leader]
    victims = {
        "leader": [leader],
        "follower": [chance.choice(others)],
        "majority": [leader, chance.choice(others)],
        "all": controllers.processes,
    }[kind]
    moment = time.monotonic()
    for each in victims:
        each.kill()
    account.kills[kind] += 1
    account.processes += len(victims)
    if kind == "leader":
        account.failovers.append(await first_decision_after(takers, moment))
    if chance.random() < 0.5:
        await asyncio.sleep(chance.uniform(0, PAUSE_S_MAX))
    await asyncio.to_thread(controllers.start)
    counts = [len(taker.answered) for taker in takers]
    async with asyncio.timeout(60):
        while any(len(taker.answered) <= count for taker, count in zip(takers, counts, strict=True)):
            await asyncio.sleep(0.005)


async def run(
    folder: Path,
    cycles: int,
    seed: int,
    snapshot_entries: int = SNAPSHOT_ENTRIES,
    *,
    engine: str = "dledger",
    forked: bool = False,
) -> Account:
    """Kill this many times; raises AssertionError when an answered decision is missing."""
    chance, account = random.Random(seed), Account()
    controllers = Controllers(folder, forked=forked, snapshot_entries=snapshot_entries, raft_engine=engine)
    takers = [IdTaker(controllers, f"g{each}") for each in range(CLIENTS)]
    try:
        controllers.start()
        for taker in takers:
            taker.begin()
        for number in range(cycles):
            await cycle(controllers, takers, chance, account)
            if number % 20 == 19:
                print(f"{number + 1}: {account.text()}", flush=True)
        for taker in takers:
            await taker.end()
        for each in controllers.processes:
            each.kill()
        controllers.start()
        known = await known_ids(controllers)
    finally:
        controllers.kill_if_running()
    answered = {each for taker in takers for each in taker.answered}
    lost = sorted(answered - known)
    print(f"{account.text()}\n{len(answered)} decisions answered, {len(lost)} lost, {len(known - answered)} more known")
    assert not lost, lost[:20]
    for each in controllers.processes:
        assert "Traceback" not in each.log.read_text(), each.log
    return account


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.processes.controller_kills", description=__doc__)
    parser.add_argument("--cycles", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--snapshot-entries", type=int, default=SNAPSHOT_ENTRIES)
    parser.add_argument("--engine", choices=("dledger", "pysyncobj"), default="dledger")
    parser.add_argument("--whole", action="store_true", help="start each by its command line: slower")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="controller-kills-", dir=options.folder) as folder:
        asyncio.run(
            run(
                Path(folder),
                options.cycles,
                options.seed,
                options.snapshot_entries,
                engine=options.engine,
                forked=not options.whole,
            )
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
