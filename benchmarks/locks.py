"""The lock study: threads that append to one log in compiled code, under a mutex, spins and the adaptive back-off lock.

`native/locks.c` is compiled with the checksum of the compiled core and run once per lock, number of threads and record
size, the locks in turn within a round, so that other load hardly affects their ratio. The verdict answers the question
of `docs/decisions/0024-no-adaptive-lock.md`: whether the adaptive lock needs at least a tenth less CPU than a mutex.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).parent
LOCKS = {
    "mutex": "mutex",
    "10": "10 spins, yield",
    "1000": "1,000 spins, yield",
    "10000": "10,000 spins, yield",
    "adaptive": "adaptive",
}
WORTH = 0.9
"""The adaptive lock is worth shipping where it needs at most this share of a mutex's CPU."""

Figures = dict[tuple[int, str, int], list[tuple[float, float]]]
"""Record bytes, lock, threads -> CPU and wall nanoseconds per operation of each round."""


def compiled(folder: str) -> Path:
    """The program, built with the flags of the compiled core. Raises CalledProcessError without a C compiler."""
    program = Path(folder, "locks")
    core = HERE.parent / "remoting" / "hot"
    command = [os.environ.get("CC", "cc"), "-O3", "-g0", "-pthread", f"-I{core}", str(HERE / "native" / "locks.c")]
    subprocess.run([*command, "-o", str(program)], check=True)
    return program


def once(program: Path, lock: str, threads: int, record_bytes: int, milliseconds: int) -> tuple[float, float]:
    """CPU and wall nanoseconds per operation of one run; the program fails when the lock let two threads in."""
    arguments = [lock, str(threads), str(record_bytes), str(milliseconds)]
    figures = subprocess.run([str(program), *arguments], capture_output=True, text=True, check=True).stdout.split()
    return float(figures[1]), float(figures[2])


def measured(program: Path, options: argparse.Namespace) -> Figures:
    """Every combination, `rounds` times."""
    figures: Figures = defaultdict(list)
    for _ in range(options.rounds):
        for size in options.bytes:
            figures[size, "none", 1].append(once(program, "none", 1, size, options.milliseconds))
            for threads in options.threads:
                for lock in LOCKS:
                    figures[size, lock, threads].append(once(program, lock, threads, size, options.milliseconds))
    return figures


def cell(rounds: list[tuple[float, float]]) -> str:
    """CPU in ns and million operations a second, medians of the rounds."""
    cpu, wall = (statistics.median(each) for each in zip(*rounds, strict=True))
    return f"{cpu:,.0f} / {1000 / wall:.2f}"


def ratio(figures: Figures, size: int, threads: int) -> float:
    """CPU of the adaptive lock over that of the mutex, the median over the rounds' own ratios."""
    pairs = zip(figures[size, "adaptive", threads], figures[size, "mutex", threads], strict=True)
    return statistics.median(adaptive[0] / mutex[0] for adaptive, mutex in pairs)


def show(figures: Figures, sizes: list[int], threads: list[int]) -> None:
    """The table, a line for each lock and record size, and whether the adaptive lock is worth it."""
    print("CPU ns per append / million appends a second; medians")
    print("| record | lock | " + " | ".join(f"{each} threads" if each > 1 else "1 thread" for each in threads) + " |")
    print("|---|---|" + "---|" * len(threads))
    for size in sizes:
        alone = [cell(figures[size, "none", 1]) if each == 1 else "" for each in threads]
        print(f"| {size} bytes | one writer, no lock | " + " | ".join(alone) + " |")
        for lock, title in LOCKS.items():
            print(f"| | {title} | " + " | ".join(cell(figures[size, lock, each]) for each in threads) + " |")
        shares = [ratio(figures, size, each) for each in threads]
        print("| | adaptive : mutex, CPU | " + " | ".join(f"{share:.2f}" for share in shares) + " |")
    worth = [f"{size} bytes x {each}" for size in sizes for each in threads if ratio(figures, size, each) <= WORTH]
    print(f"a tenth less CPU than the mutex on {os.cpu_count()} processors: {', '.join(worth) or 'nowhere'}")


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--bytes", type=int, nargs="+", default=[100, 4096, 32768], help="sizes of a record")
    parser.add_argument("--milliseconds", type=int, default=400, help="length of one run")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lightmq-locks-") as folder:
        show(measured(compiled(folder), options), options.bytes, options.threads)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
