"""Small stores in a group: a master, replicas, and the bytes between them moved by hand."""

from __future__ import annotations

import shutil
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import structlog

from broker.store.log_store import LogStore
from tests.sim.stores import StoreBench


class ReplicaBench(StoreBench):
    """A store that is opened in roles; `role` and `epoch` of the last opening apply to the next."""

    def __init__(
        self, directory: Path, *, role: str = "writer", epoch: int | None = None, log: Any = None, **settings: Any
    ) -> None:
        self._role: dict[str, Any] = {"role": role, "epoch": epoch}
        directory.parent.mkdir(parents=True, exist_ok=True)
        super().__init__(directory, log=log or structlog.get_logger(), **settings)

    def open(self, **role: Any) -> LogStore:
        """Open the directory again, in another role when one is given."""
        if role:
            self._role = {"role": "writer", "epoch": None, **role}
        self.store = LogStore.open(
            self.directory, self.settings, clock=self.clock, faults=self.faults, schedule=self.due.append,
            log=self.log, **self._role,
        )  # fmt: skip
        return self.store

    def reopen_as(self, **role: Any) -> LogStore:
        """Close and open in a role: {} is a node by itself."""
        self.close()
        return self.open(**(role or {"epoch": None}))

    @classmethod
    def copy_of(cls, other: ReplicaBench, directory: Path, **role: Any) -> ReplicaBench:
        """A store opened from the present files of another one, as if killed; in its role or in another."""
        shutil.copytree(other.directory, directory)
        (directory / "lock").unlink()
        return cls(directory, **(role or other._role), log=other.log, **asdict(other.settings))

    def with_settings(self, **settings: Any) -> None:
        """Use other settings from the next opening on."""
        self.settings = replace(self.settings, **settings)

    def flush(self) -> None:
        """Turn until all whole groups are on the disk."""
        deadline = time.monotonic() + 20
        self.store.positions._flusher.request()
        end = self.store._parts.opened.index.end_position
        while self.store.positions.flushed < end:
            self.turn()
            assert time.monotonic() < deadline, "the flushed position does not move"
            time.sleep(0.0002)
        self.turn()


def pull(master: LogStore, replica: LogStore, bytes_max: int, end: int | None = None) -> None:
    """Bring the replica's log up to `end`, by default the master's end, in parts of about `bytes_max`."""
    while replica.end_position < (master.end_position if end is None else end):
        part = master.replica.raw(replica.end_position, bytes_max)
        assert part is not None
        replica.replica.append_raw(replace(part, data=memoryview(bytes(part.data))))


def log_bytes(directory: Path) -> dict[str, bytes]:
    """Name and content of every log file."""
    return {path.name: path.read_bytes() for path in sorted((directory / "log").iterdir()) if path.name.isdigit()}
