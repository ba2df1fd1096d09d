"""`python -m benchmarks demo`: the demo again and again beside busy processes, each run with its moments and its end.

A run is `python3 demo.py`, as `make demo` does: in this checkout (warm) or, with `--cold`, in a clone of its own with
nothing installed. Beside it `--load` processes use all the CPU they get. Printed are the moments of each run in
seconds since the command, the CPU that it had used when Spark wrote its first rows (what an idle machine would need,
for those who measure on a busy one), and its last word where it failed. Exit status 1 if any run failed.

Invariant: busy processes and the demo end with this program. Thread rule: a thread per run adds up its CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
BUSY = "while True: pass"
SAMPLE_S = 0.25
RUN_TIMEOUT_S = 900.0
END_TIMEOUT_S = 60.0
MOMENTS = ("broker up", "first reading", "Spark starts", "Spark's first rows", "all queries up", "first command back")


@dataclass
class Outcome:
    """One run: seconds since the command by moment, CPU seconds until Spark's first rows, and how it ended."""

    took_s: float
    cpu_s: float
    status: int | None
    moments_s: dict[str, float] = field(default_factory=dict)
    restarts: int = 0
    words: str = ""

    @property
    def is_good(self) -> bool:
        """Whether the demo ended with an accounting that holds, without anything like a stack trace."""
        return self.status == 0 and "Traceback" not in self.words and "\tat " not in self.words


@contextmanager
def load(processes: int) -> Iterator[None]:
    """Keep so many processes busy meanwhile."""
    children = [subprocess.Popen([sys.executable, "-c", BUSY], start_new_session=True) for _ in range(processes)]
    try:
        yield
    finally:
        for child in children:
            child.kill()
            child.wait()


class TreeCpu:
    """CPU seconds of a process and all its descendants so far, those that have ended too."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._known: dict[int, float] = {}

    def sample(self) -> float:
        """Look again; return the sum."""
        try:
            alive = [self._root, *self._root.children(recursive=True)]
        except psutil.Error:
            return sum(self._known.values())
        for process in alive:
            try:
                times = process.cpu_times()
            except psutil.Error:
                continue
            self._known[process.pid] = times.user + times.system
        return sum(self._known.values())


def run_once(checkout: Path, out: Path, seconds: float) -> Outcome:
    """Run the demo to its end, or end it when it takes too long."""
    begun = time.monotonic()
    command = [sys.executable, str(checkout / "demo.py"), "--plain", "--seconds", f"{seconds:g}", "--out", str(out)]
    child = subprocess.Popen(
        command, cwd=checkout, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    cpu, cpu_s, ready_s, words = TreeCpu(child.pid), [0.0], [0.0], []
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(SAMPLE_S):
            used = cpu.sample()
            if not ready_s[0]:
                cpu_s[0] = used
            if time.monotonic() - begun > RUN_TIMEOUT_S:
                end(child)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    assert child.stdout is not None
    try:
        for line in child.stdout:
            words.append(line)
            if "first rows after" in line and not ready_s[0]:
                ready_s[0] = time.monotonic() - begun
        status = child.wait()
    finally:
        ended.set()
        watcher.join()
        end(child)
    outcome = Outcome(time.monotonic() - begun, cpu_s[0], status, words="".join(words))
    if (out / "result.json").exists():
        found = json.loads((out / "result.json").read_text())
        # The demo's clock begins when its modules are loaded; the one here with the command.
        before_s = max(0.0, ready_s[0] - found["moments_s"].get("Spark's first rows", ready_s[0]))
        outcome.moments_s = {name: at_s + before_s for name, at_s in found["moments_s"].items()}
        outcome.restarts = len(found["restarts"]) + found["revivals"]
    return outcome


def end(child: subprocess.Popen[str]) -> None:
    """End a demo that is still running: Ctrl-C twice ends it with all that it started."""
    for _ in range(2):
        if child.poll() is None:
            child.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                child.wait(1)
    with suppress(subprocess.TimeoutExpired):
        child.wait(END_TIMEOUT_S)
    child.kill()
    child.wait()


def clone(folder: Path) -> Path:
    """Make a checkout in which nothing is installed."""
    target = folder / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(target)], check=True)
    return target


def show(number: int, outcome: Outcome) -> None:
    """Print one run as a line, and the end of what it said if it failed."""
    places = [(name, outcome.moments_s.get(name)) for name in MOMENTS]
    moments = "  ".join(("-" if at_s is None else f"{at_s:.1f}").rjust(len(name)) for name, at_s in places)
    rest = f"{outcome.took_s:>6.1f}  {outcome.cpu_s:>11.1f}  {outcome.restarts:>8}"
    print(f"{number:>3}  {moments}  {rest}  {'good' if outcome.is_good else f'FAILED ({outcome.status})'}", flush=True)
    if not outcome.is_good:
        print("".join(f"     | {line}\n" for line in outcome.words.splitlines()[-12:]), flush=True)


def main() -> int:
    """Run the demo as often as asked; 1 if any run failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks demo")
    parser.add_argument("--runs", type=int, default=10, help="how often (10)")
    parser.add_argument("--load", type=int, default=8, help="busy processes beside it (8)")
    parser.add_argument("--seconds", type=float, default=15.0, help="how long each runs once Spark is up (15)")
    parser.add_argument("--cold", action="store_true", help="each run in a fresh clone, with everything to install")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    print(f"{'run':>3}  {'  '.join(MOMENTS)}  {'ended':>6}  cpu at rows  restarts  (s)")
    failures = 0
    with load(options.load):
        for number in range(1, options.runs + 1):
            with tempfile.TemporaryDirectory(prefix="lightmq-demo-") as folder:
                checkout = clone(Path(folder)) if options.cold else ROOT
                outcome = run_once(checkout, Path(folder) / "out", options.seconds)
            show(number, outcome)
            failures += not outcome.is_good
    print(f"{options.runs - failures} of {options.runs} runs were good; load {os.getloadavg()[0]:.1f}")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
