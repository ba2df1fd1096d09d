"""``lightmq store``: check, list, count and mend a broker's data directory.

verify, dump and stat only read and may run beside the broker; rebuild-index needs it stopped. Exit status 1: damaged.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from lightmq.cli.examples import epilogue
from lightmq.cli.outcome import FAILED, MISUSED, fail
from lightmq.cli.progress import ShowProgress, progress

store = App(
    name="store",
    help="Check and repair a broker's data directory, list and count what it holds.",
    help_format="plaintext",
    help_epilogue=epilogue("store"),
)
Directory = Annotated[Path, Parameter(help="Data directory, of a broker or of `lightmq up`.")]
Json = Annotated[bool, Parameter(name=["--json"], negative=(), help="One JSON object.")]
HERE = Path("lightmq-data")


@contextmanager
def _misuse_without_directory() -> Iterator[None]:
    """A path without a data directory is a misuse, with the status for it."""
    from broker.store.inspection.directory import NoDataDirectory

    try:
        yield
    except NoDataDirectory as error:
        raise SystemExit(fail(str(error), MISUSED)) from error


@store.command
def verify(directory: Directory = HERE, *, json_output: Json = False, show: ShowProgress = False) -> None:
    """Check every record, queue, index run and the state, changing nothing; exit status 1 when damaged."""
    from broker.store.inspection.verifier import render
    from broker.store.inspection.verifier import verify as check

    with _misuse_without_directory(), progress("checking the log", as_lines=show) as passed:
        report = check(directory, passed)
    sys.stdout.write(json.dumps(asdict(report)) + "\n" if json_output else render(report))
    if report.errors:
        raise SystemExit(FAILED)


@store.command
def dump(
    directory: Directory = HERE,
    *,
    start: Annotated[int, Parameter(name=["--from"], help="First log position.")] = 0,
    queue: Annotated[str, Parameter(help="Only records of this queue, by id or name.")] = "",
    limit: Annotated[int, Parameter(name=["--limit", "-n"], help="Print at most this many records; 0: all.")] = 0,
) -> None:
    """Print records as JSON lines, in log order."""
    from broker.store.inspection.commands import records

    with _misuse_without_directory():
        for record in records(directory, start=start, queue=queue, limit=limit):
            sys.stdout.write(json.dumps(record, ensure_ascii=False) + "\n")


@store.command
def stat(
    directory: Directory = HERE,
    *,
    json_output: Json = False,
    queues: Annotated[bool, Parameter(negative=(), help="List ids and names of the queues instead.")] = False,
) -> None:
    """Print positions, epochs, log files, index runs, queues and the sizes of the state."""
    from broker.store.inspection.commands import queues_of, state_of, summarise
    from broker.store.inspection.directory import open_directory

    with _misuse_without_directory():
        if queues:
            for number, name in sorted(queues_of(state_of(open_directory(directory))[0])):
                sys.stdout.write(f"{number}\t{name.decode(errors='backslashreplace')}\n")
            return
        found = asdict(summarise(directory))
    if json_output:
        sys.stdout.write(json.dumps(found) + "\n")
        return
    runs, key_runs, state = found.pop("runs"), found.pop("key_runs"), found.pop("state")
    width = max(map(len, found))
    sys.stdout.write("".join(f"{name:<{width}}  {_plain(value)}\n" for name, value in found.items()))
    for run in runs:
        sys.stdout.write(
            f"run {run['id']}: level {run['level']}, {run['entries']} entries of {run['queues']} queues, "
            f"log {run['first_position']} to {run['end_position']}\n"
        )
    for run in key_runs:
        sys.stdout.write(
            f"key run {run['id']}: level {run['level']}, {run['entries']} keys, "
            f"log {run['first_position']} to {run['end_position']}\n"
        )
    for kind, sizes in state.items():
        size = sizes["key_bytes"] + sizes["value_bytes"]
        sys.stdout.write(f"state {kind}: {sizes['entries']} entries, {size} bytes\n")


@store.command(name="rebuild-index")
def rebuild_index(directory: Directory = HERE, *, json_output: Json = False, show: ShowProgress = False) -> None:
    """Rebuild the index from the log; the broker must be stopped."""
    from broker.store.inspection.commands import rebuild_index as rebuild
    from runtime.clock import SystemClock
    from runtime.logs import get_logger

    with _misuse_without_directory(), progress("rebuilding the index", as_lines=show) as passed:
        done = rebuild(directory, clock=SystemClock(), log=get_logger("store"), passed=passed)
    if json_output:
        sys.stdout.write(json.dumps(done) + "\n")
    else:
        sys.stdout.write(f"index of {done['queues']} queues rebuilt from {done['records']} records\n")


def _plain(value: object) -> str:
    return "" if value is None or value == [] else str(value)
