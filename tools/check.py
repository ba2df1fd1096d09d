"""`make test`: style, types, layering, then the quick test suite, each shown with its time.

Invariant: every check runs even when an earlier one failed, so that one run tells everything; the exit status is the
worst. pytest comes last, so that its summaries are the last things printed: three times side by side, because the two
suites that start servers mostly wait while the tests of single modules compute, then for the suite that judges times.
A test that fails has failed: none is run a second time.
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
from contextlib import ExitStack
from pathlib import Path

import bootstrap

BIN = bootstrap.ENVIRONMENT / "bin"
STATIC: dict[str, list[str]] = {
    "style": [str(BIN / "ruff"), "check", "--quiet", "."],
    "format": [str(BIN / "ruff"), "format", "--check", "--quiet", "."],
    "types": [str(BIN / "mypy")],
    "layering": [str(BIN / "lint-imports"), "--no-logo"],
}
COMPILED = """
import broker, mqtt_proxy, remoting
raise SystemExit("; ".join(sorted({each.TYPED.reason for each in (broker, mqtt_proxy, remoting)} - {""})) or None)
"""
"""Says why a package runs uncompiled; nothing, with status 0, when none does."""
QUICK_MARKS = "not slow"
SERVERS = ("tests/interop", "tests/processes")
"""Suites that start servers, and mostly wait for them."""
JUDGES_TIMES = "tests/chaos"
"""The suite whose servers count as dead after two seconds: it has the machine to itself."""
PARTS: dict[str, list[str]] = {
    **{folder.rpartition("/")[2]: [folder] for folder in SERVERS},
    "modules": ["tests", *(f"--ignore={folder}" for folder in (*SERVERS, JUDGES_TIMES))],
    "alone": [JUDGES_TIMES],
}
"""The quick suite: all but the last one side by side, that one behind them."""


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

    def options(name: str) -> list[str]:
        return ["-m", QUICK_MARKS, *PARTS[name]]

    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        outputs = {name: Path(folder, name) for name in PARTS if name not in ("modules", "alone")}
        running = {name: _begin(stack, options(name), output) for name, output in outputs.items()}
        statuses = [run_pytest(options("modules"))]
        for name, process in running.items():
            print(f"waiting for the tests of {name}", flush=True)
            statuses.append(process.wait())
            print(outputs[name].read_text(errors="replace"), flush=True)
    statuses.append(run_pytest(options("alone")))
    return max(statuses, key=abs)


def _begin(stack: ExitStack, arguments: Sequence[str], output: Path) -> subprocess.Popen[bytes]:
    """Start pytest beside others, printing to a file; it ends with `stack`."""
    with output.open("wb") as file:
        process = subprocess.Popen(pytest_command(arguments), cwd=bootstrap.ROOT, stdout=file, stderr=file)
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


def pytest_command(arguments: Sequence[str]) -> list[str]:
    """Return the command that runs pytest."""
    return [str(BIN / "python"), "-m", "pytest", "-q", *arguments]


def run_pytest(arguments: Sequence[str]) -> int:
    """Run pytest; return its exit status."""
    return subprocess.run(pytest_command(arguments), cwd=bootstrap.ROOT, check=False).returncode


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
