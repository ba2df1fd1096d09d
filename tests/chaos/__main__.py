"""``python -m tests.chaos --minutes 60 --seed 7``: break a cluster for a while and report what survived.

Writes events.jsonl (every fault, with its time), report.txt, report.json and timeline.svg to the folder, and the log of
the run's own clients to clients.log; the exit status is 0 when every judge passes.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from pathlib import Path

from tests.chaos.run import Options, Run

NOT_SAID = ("folder", "further")
"""Arguments that the report's command writes differently, or omits."""


def main(arguments: list[str] | None = None) -> int:
    """Run; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--faults", type=int, default=1_000_000, help="end after this many")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--controllers", type=int, default=3)
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument(
        "--mode", choices=("controller", "dledger"), default="controller", help="who chooses the master"
    )
    parser.add_argument("--proxies", type=int, default=1)
    parser.add_argument("--learners", type=int, default=0, help="brokers that are never in sync")
    parser.add_argument("--kept-mb", type=int, default=0, help="clean the log down to this size; 0: keep all of it")
    parser.add_argument("--with", dest="further", nargs="*", default=[], choices=("bit_flip",), help="further faults")
    parser.add_argument("--rate", type=float, default=1_200.0, help="messages per second of all sources")
    parser.add_argument("--scale", type=float, default=1.0, help="factor of all durations")
    parser.add_argument("--silence-ms", type=int, default=0, help="when a broker counts as dead; 0: as shipped")
    parser.add_argument("--network", choices=("auto", "namespaces", "proxies"), default="auto")
    parser.add_argument("--folder", type=Path, default=None, help="where everything is written")
    given = parser.parse_args(arguments)
    folder = given.folder or Path(tempfile.mkdtemp(prefix="lightmq-chaos-"))
    words = [f"--{key.replace('_', '-')} {value}" for key, value in vars(given).items() if key not in NOT_SAID]
    words += [f"--with {' '.join(given.further)}"] if given.further else []
    options = Options(
        seed=given.seed, folder=folder, seconds=given.minutes * 60, faults_max=given.faults,
        controllers=given.controllers, brokers=given.brokers, mode=given.mode, proxies=given.proxies,
        learners=given.learners, kept_mb=given.kept_mb, further=frozenset(given.further), rate=given.rate,
        network=given.network, scale=given.scale, silence_ms=given.silence_ms,
        command=f"python -m tests.chaos {' '.join(words)}",
    )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(filename=folder / "clients.log", format="%(asctime)s %(name)s %(message)s")
    report = Run(options).execute()
    print(report.text())
    print(f"written to {folder}")
    return 0 if report.passed else 1


if __name__ == "__main__":
    sys.exit(main())
