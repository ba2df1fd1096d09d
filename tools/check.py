"""`make test`: style, types, layering, then the quick test suite, each shown with its time.

Invariant: every check runs even when an earlier one failed, so that one run tells everything; the exit status is the
worst. pytest comes last, so that its summary is the last thing printed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import bootstrap

BIN = bootstrap.ENVIRONMENT / "bin"
STATIC: dict[str, list[str]] = {
    "style": [str(BIN / "ruff"), "check", "--quiet", "."],
    "format": [str(BIN / "ruff"), "format", "--check", "--quiet", "."],
    "types": [str(BIN / "mypy")],
    "layering": [str(BIN / "lint-imports"), "--no-logo"],
}
QUICK_MARKS = "not slow"


def run_static() -> list[str]:
    """Run the checks of the code as text; return the names of those that failed."""
    failed = []
    for name, command in STATIC.items():
        begun = time.monotonic()
        finished = subprocess.run(command, cwd=bootstrap.ROOT, check=False, capture_output=True, text=True)
        verdict = "ok" if finished.returncode == 0 else "FAILED"
        print(f"{name:<10}{verdict:<8}{time.monotonic() - begun:6.1f} s", flush=True)
        if finished.returncode != 0:
            failed.append(name)
            print(finished.stdout[-6000:], finished.stderr[-2000:], sep="\n", flush=True)
    return failed


def run_tests(arguments: Sequence[str]) -> int:
    """Run pytest on the quick suite with the caller's further arguments; return its exit status."""
    command = [str(BIN / "python"), "-m", "pytest", "-q", "-m", QUICK_MARKS, *arguments]
    return subprocess.run(command, cwd=bootstrap.ROOT, check=False).returncode


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
