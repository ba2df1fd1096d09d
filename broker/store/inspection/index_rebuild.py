"""Builds the index of a stopped store anew from its log.

Invariant: the log is not changed; the former index is put aside and goes only when the new one is complete and durable;
when the log turns out to be damaged the former index is put back. Thread rule: one thread owns the store meanwhile.
"""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from broker.store.inspection.directory import locate, open_directory
from broker.store.keys.key_manifest import DIRECTORY as KEYS
from broker.store.log.checkpoint import Checkpoint, save_checkpoint
from broker.store.log.segment import list_segments
from broker.store.log_store import LogStore
from broker.store.settings import SEGMENT_SIZE_BYTES_MIN, StoreSettings
from runtime.clock import Clock
from runtime.faults import FaultPoints
from runtime.files import DirectoryLock

ASIDE = "index.former"


def rebuild_index(path: Path, *, clock: Clock, log: Any) -> dict[str, int]:
    """Rebuild and return what was read: `records`, `queues`, `end_position`.

    Raises NoDataDirectory, DirectoryLocked (a broker uses it), CorruptLog, OSError.
    """
    directory = locate(path)
    aside = directory / ASIDE
    with DirectoryLock(directory):
        _keep_durable(directory)
        shutil.rmtree(directory / KEYS, ignore_errors=True)
        if (directory / "index").exists():
            shutil.rmtree(aside, ignore_errors=True)
            (directory / "index").rename(aside)
    due: deque[Callable[[], None]] = deque()
    settings = StoreSettings(
        segment_size_bytes=_file_size(directory), ballast_size_bytes=0, free_space_bytes_min=0, flush_interval_ms=1,
        damage_policy="refuse",
    )  # fmt: skip
    try:
        store = LogStore.open(directory, settings, clock=clock, faults=FaultPoints(), schedule=due.append, log=log)
    except BaseException:
        if aside.exists():
            shutil.rmtree(directory / "index", ignore_errors=True)
            aside.rename(directory / "index")
        raise
    found = store.metrics()
    records = store.replayed_records
    store.close()
    while due:
        due.popleft()()
    shutil.rmtree(aside, ignore_errors=True)
    return {"records": records, "queues": found["queues"], "end_position": found["end_position"]}


def _file_size(directory: Path) -> int:
    """Return the size the log files have, so that opening the store leaves the last one as it is."""
    sizes = [path.stat().st_size for path in list_segments(directory / "log")]
    return max(SEGMENT_SIZE_BYTES_MIN, max(sizes, default=0) & ~7)


def _keep_durable(directory: Path) -> None:
    """Note how far the log was durable: the index that is put aside may be the only one to prove it."""
    found = open_directory(directory)
    checkpoint = found.checkpoint
    if found.durable > (checkpoint.position if checkpoint else 0):
        save_checkpoint(directory, Checkpoint(checkpoint.epoch if checkpoint else 0, found.durable, clean=False))
