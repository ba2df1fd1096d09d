"""The parts of a data directory, opened for reading in the order that makes them comparable.

Invariant: everything that promises something about the log (durable positions, snapshot, runs) is read before the log
files are listed, so a live broker can only have more in the log than was promised. Nothing is created or changed.
Thread rule: one thread.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from broker.store.errors import CorruptIndex, StoreError
from broker.store.index.manifest import Manifest, load_manifest
from broker.store.index.queue_index import TAIL_NAME
from broker.store.index.run import Run, run_path
from broker.store.index.tail import read_durable
from broker.store.inspection.key_check import KeyFiles, open_key_files
from broker.store.inspection.log_files import LogFiles
from broker.store.keys.key_manifest import DIRECTORY as KEYS
from broker.store.log.checkpoint import Checkpoint, load_checkpoint
from broker.store.log.durable_mark import Mark, load_mark
from broker.store.recovery.quarantine import Quarantine, load_quarantine
from broker.store.state.state_snapshot import Snapshot, load_snapshot
from remoting.protocol.errors import LocalMisuse
from runtime.files import LOCK_NAME

OPEN_ATTEMPTS_MAX = 5
"""How often runs are opened anew when a live broker has merged them meanwhile."""
Loaded = TypeVar("Loaded")


class NoDataDirectory(LocalMisuse):
    """There is no log at the path."""


@dataclass(slots=True)
class DataDirectory:
    """What was found; `unreadable` are files that the log can replace but that fail their checks."""

    path: Path
    owner_pid: int | None
    checkpoint: Checkpoint | None
    mark: Mark | None
    snapshot: Snapshot | None
    manifest: Manifest
    runs: list[Run]
    keys: KeyFiles
    durable: int
    files: LogFiles
    quarantine: Quarantine
    unreadable: list[CorruptIndex] = field(default_factory=list)


def locate(path: Path) -> Path:
    """Return the data directory of the store at `path`: itself, or the broker's part of an installation.

    Raises NoDataDirectory.
    """
    for candidate in (path, path / "broker"):
        if (candidate / "log").is_dir():
            return candidate
    raise NoDataDirectory(f"{path}: there is no data directory of a broker, neither there nor in {path / 'broker'}")


def open_directory(path: Path) -> DataDirectory:
    """Open everything in `path` read-only. Raises NoDataDirectory, OSError."""
    path = locate(path)
    unreadable: list[CorruptIndex] = []
    checkpoint = _load(lambda: load_checkpoint(path), unreadable)
    snapshot = _load(lambda: load_snapshot(path / "state"), unreadable)
    mark = _load(lambda: load_mark(path), unreadable)
    quarantine = _load(lambda: load_quarantine(path), unreadable) or Quarantine()
    manifest, runs = _open_runs(path / "index", unreadable)
    keys = open_key_files(path / KEYS, unreadable)
    durable = max(
        checkpoint.position if checkpoint else 0,
        mark.position if mark else 0,
        snapshot.position if snapshot else 0,
        manifest.end_position,
        read_durable(path / "index" / TAIL_NAME),
    )
    files = LogFiles(path / "log")
    return DataDirectory(
        path, owner_of(path), checkpoint, mark, snapshot, manifest, runs, keys, durable, files, quarantine, unreadable
    )  # fmt: skip


def owner_of(path: Path) -> int | None:
    """Return the process that holds the directory's lock (0: not known), None when nobody does."""
    try:
        descriptor = os.open(path / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.pread(descriptor, 32, 0).strip()
        return int(text) if text.isdigit() else 0
    finally:
        os.close(descriptor)
    return None


def _load(load: Callable[[], Loaded | None], unreadable: list[CorruptIndex]) -> Loaded | None:
    try:
        return load()
    except CorruptIndex as error:
        unreadable.append(error)
        return None


def _open_runs(directory: Path, unreadable: list[CorruptIndex]) -> tuple[Manifest, list[Run]]:
    for attempt in range(OPEN_ATTEMPTS_MAX):
        try:
            manifest = load_manifest(directory) or Manifest()
            return manifest, [Run(run_path(directory, file_id)) for file_id in manifest.runs]
        except (StoreError, FileNotFoundError) as error:
            if attempt == OPEN_ATTEMPTS_MAX - 1:
                unreadable.append(error if isinstance(error, CorruptIndex) else CorruptIndex(directory, str(error)))
    return Manifest(), []
