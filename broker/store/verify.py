"""`python -m broker.store.verify DIR [--json]`: check a data directory without changing it; see `inspection.verifier`.

Exit status 0: sound, 1: damaged, 2: not a data directory. `lightmq store verify` is the same check.
Invariant: nothing is opened for writing, so it may run beside a live broker. Thread rule: one thread, its own process.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from broker.store.inspection.directory import NoDataDirectory
from broker.store.inspection.verifier import Report, verify


def render(report: Report) -> str:
    """Return a report as lines for people."""
    lines = [
        f"{name.replace('_', ' ')}: {value}"
        for name, value in asdict(report).items()
        if name not in ("errors", "errors_total", "quarantined") and value not in (None, "")
    ]
    lines += [f"in quarantine: {each.path}: {each.text}" for each in report.quarantined]
    lines += [f"error: {error.check}: {error.path}: {error.text}" for error in report.errors]
    count = report.errors_total
    lines.append(f"{count} {'error' if count == 1 else 'errors'}" if count else "sound")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the directory named on the command line."""
    parser = argparse.ArgumentParser(prog="python -m broker.store.verify", description="check a data directory")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args(arguments)
    try:
        report = verify(options.directory)
    except NoDataDirectory as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(json.dumps(asdict(report)) + "\n" if options.json else render(report))
    return 1 if report.errors else 0


if __name__ == "__main__":
    sys.exit(main())
