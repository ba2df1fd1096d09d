"""`make test`: style, types, layering, then the quick test suite, each shown with its time.

Invariant: every check runs even when an earlier one failed, so that one run reports everything; the exit status is the
worst. pytest comes last: the parts that start servers side by side, because they mostly wait, then the tests of single
modules, which compute, then the suites that judge times; a table of the parts is the last thing printed. Failed tests
are never rerun.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path

import bootstrap

BIN = bootstrap.ENVIRONMENT / "bin"
STATIC: dict[str, list[str]] = {
    "style": [str(BIN / "ruff"), "check", "--quiet", "."],
    "format": [str(BIN / "ruff"), "format", "--check", "--quiet", "."],
    "types": [str(BIN / "mypy")],
    "layering": [str(BIN / "lint-imports"), "--no-logo"],
    "dead code": [str(BIN / "python"), "tools/dead_code.py"],
}
if (BIN / "typos").is_file():  # an environment that was made before this check has it after the next `make setup`
    STATIC["spelling"] = [str(BIN / "typos"), "--format", "brief"]
COMPILED = """
import broker, mqtt_proxy, remoting
raise SystemExit("; ".join(sorted({each.TYPED.reason for each in (broker, mqtt_proxy, remoting)} - {""})) or None)
"""
"""Says why a package runs uncompiled; nothing, with status 0, when none does."""
QUICK_MARKS = "not slow"
JUDGE_TIMES = ("tests/chaos", "tests/deploy")
"""Suites of whole clusters whose parts count as dead after a second or two: they run alone on the machine."""
MODULES_AT_ONCE, SERVERS_AT_ONCE = 3, 3
"""How many tests of a part run at the same time: most of the time each waits, for a disk, a server or the clock."""


def workers(count: int) -> list[str]:
    """Options for parallel tests; an idle worker takes tests from another one."""
    return ["-n", str(count), "--dist", "worksteal"]


PARTS: dict[str, list[str]] = {
    "spark": ["-m", f"{QUICK_MARKS} and spark", "tests/interop"],
    "drivers": ["-m", f"{QUICK_MARKS} and spark", "tests/processes"],
    "servers": [
        *("-m", f"{QUICK_MARKS} and not spark", "tests/interop", "tests/processes"),
        *workers(SERVERS_AT_ONCE),
    ],
    "browser": ["-m", QUICK_MARKS, "tests/browser"],
    "modules": [
        *("-m", QUICK_MARKS, "tests", *workers(MODULES_AT_ONCE)),
        *(f"--ignore={folder}" for folder in ("tests/interop", "tests/processes", "tests/browser", *JUDGE_TIMES)),
    ],
    "alone": ["-m", QUICK_MARKS, *JUDGE_TIMES],
}
"""Arguments of pytest for each part of the quick suite; all but the last two run side by side, those behind them.

What one part leaves out, by folder or by mark, another part names, so every new test is in one of them.
"""


def run_static() -> list[str]:
    """Run the checks of the code as text; return the names of those that failed."""
    failed = []
    for name, command in checks().items():
        begun = time.monotonic()
        finished = subprocess.run(command, cwd=bootstrap.ROOT, check=False, capture_output=True, text=True)
        verdict = "ok" if finished.returncode == 0 else "FAILED"
        print(f"{name:<10}{verdict:<8}{time.monotonic() - begun:6.1f} s", flush=True)
        if finished.returncode != 0:
            failed.append(name)
            print(finished.stdout[-6000:], finished.stderr[-2000:], sep="\n", flush=True)
    return failed


def checks() -> dict[str, list[str]]:
    """Return what is checked before the tests; whether all is compiled only where it can be."""
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if os.environ.get("LIGHTMQ_PURE", "0") != "0" or shutil.which("cc") is None or not header.exists():
        return STATIC
    return {**STATIC, "compiled": [str(BIN / "python"), "-c", COMPILED]}


def run_tests(arguments: Sequence[str]) -> int:
    """Run pytest on the quick suite, or with the caller's arguments alone; return its exit status."""
    if arguments:
        return run_pytest(["-m", QUICK_MARKS, *arguments])
    return run_parts()


def run_parts() -> int:
    """Run the quick suite in its parts; return the worst exit status."""
    results: dict[str, Result] = {}
    *together, modules, alone = PARTS
    with ThreadPoolExecutor(len(together)) as pool, tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        outputs = {name: Path(folder, name) for name in together}
        running = {name: pool.submit(_run_part, stack, name, output) for name, output in outputs.items()}
        for name, result in running.items():
            print(f"waiting for the tests of {name}", flush=True)
            results[name] = result.result()
            print(outputs[name].read_text(errors="replace"), flush=True)
        # Module tests are CPU-bound: beside the others, Spark's Python would not start within Spark's ten seconds.
        for name in (modules, alone):
            results[name] = _run_part(stack, name)
    for name in PARTS:
        print(results[name].text(name), flush=True)
    return max((result.status for result in results.values()), key=abs)


@dataclass(frozen=True)
class Result:
    """How a part ended, and how long it took."""

    status: int
    seconds: float

    def text(self, name: str) -> str:
        """A line of the table."""
        minutes, seconds = divmod(round(self.seconds), 60)
        return f"{name:<10}{'FAILED' if self.status else 'ok':<8}{minutes:4} m {seconds:02} s"


def _run_part(stack: ExitStack, name: str, output: Path | None = None) -> Result:
    """Run one part, printing to a file where one is given; it ends with `stack`."""
    begun = time.monotonic()
    with nullcontext() if output is None else output.open("wb") as file:
        process = subprocess.Popen(
            pytest_command(PARTS[name]), cwd=bootstrap.ROOT, env=environment(), stdout=file, stderr=file
        )
    stack.callback(process.kill)
    return Result(process.wait(), time.monotonic() - begun)


def pytest_command(arguments: Sequence[str]) -> list[str]:
    """Return the command that runs pytest."""
    return [str(BIN / "python"), "-m", "pytest", "-q", *arguments]


def run_pytest(arguments: Sequence[str]) -> int:
    """Run pytest; return its exit status."""
    return subprocess.run(pytest_command(arguments), cwd=bootstrap.ROOT, env=environment(), check=False).returncode


def environment() -> dict[str, str]:
    """Variables of the tests: Python's bytecode is cached in `.venv/`, even where the caller disables that.

    They start more than a thousand processes, and each would otherwise compile every module it imports again, which is
    more than half of its CPU time. Containers often set PYTHONDONTWRITEBYTECODE, and uv writes no bytecode.
    """
    kept = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(bootstrap.ENVIRONMENT / "bytecode")}
    return {**os.environ, **kept}


def main(arguments: Sequence[str] | None = None) -> int:
    """Bring the environment up to date, then check."""
    parser = argparse.ArgumentParser(description="style, types, layering and the quick test suite")
    parser.add_argument("--static", action="store_true", help="no tests")
    options, rest = parser.parse_known_args(arguments)
    try:
        bootstrap.ensure("dev")
    except bootstrap.SetupFailed as failure:
        print(f"set-up failed: {failure}", file=sys.stderr)
        return 1
    failed = run_static()
    status = 0 if options.static else run_tests(rest)
    if failed:
        print(f"failed before the tests: {', '.join(failed)}")
    return 1 if failed or status else 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    raise SystemExit(main())
