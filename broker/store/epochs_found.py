"""What a start makes of the EPOCHS file: checked against the log, made anew where that is needed, with its own entry.

A node by itself does not look through a log for epochs that nobody asks for: without the file it goes on without, and
the first start in a group makes it. Invariant: when `settle` returns, the entry of this start's epoch is on the disk,
and every other one agrees with the records. Thread rule: before the first append.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from broker.store.commit_log import CommitLog
from broker.store.epoch_file import NAME, Epoch, epochs_of, load_epochs, recovered, save_epochs, with_epoch
from broker.store.errors import CorruptIndex
from broker.store.role import Role
from remoting.protocol.errors import LocalMisuse


class EpochsFound:
    """The epochs of a recovered log; `last`: of its last record, `known`: of the last start."""

    def __init__(self, directory: Path, log: CommitLog, last: int, known: int, events: Any) -> None:
        self._directory = directory
        self._log = log
        self._last = last
        self._known = known
        self._events = events

    def settle(self, role: Role) -> list[Epoch]:
        """Return the entries for a start in `role`. Raises LocalMisuse: the epoch given was used before; OSError."""
        found = self._load()
        if found is None and not role.grouped and self._log.end > self._log.begin:
            (self._directory / NAME).unlink(missing_ok=True)
            return [(self._next(), self._log.end)]
        entries = self._rebuilt() if found is None else found
        if role.epoch is not None and entries and role.epoch <= max(self._last, entries[-1][0]):
            raise LocalMisuse(f"epoch {role.epoch} for a log that has seen epoch {max(self._last, entries[-1][0])}")
        if not role.replica:
            epoch = role.epoch if role.epoch is not None else max(self._next(), (entries or [(0, 0)])[-1][0] + 1)
            entries = with_epoch(entries, epoch, self._log.end)
        if not role.replica or found is None:
            save_epochs(self._directory, entries)
        return entries

    def _next(self) -> int:
        return max(self._last, self._known) + 1

    def _load(self) -> list[Epoch] | None:
        """Return the entries of the file as far as the log has them, None when the file does not tell all of it."""
        log = self._log
        try:
            loaded = load_epochs(self._directory)
        except CorruptIndex as error:
            self._events.warning("epochs_unreadable", reason=str(error))
            return None
        if loaded is None:
            return None
        entries = recovered(loaded, log.begin, log.end)
        if log.end == log.begin or (entries and entries[0][1] <= log.begin and entries[-1][0] >= self._last):
            return entries
        self._events.warning("epochs_incomplete", last_record=self._last, entries=len(entries))
        return None

    def _rebuilt(self) -> list[Epoch]:
        """Return the entries that the records tell, and the epoch of a start that has written none."""
        entries = epochs_of(self._log, self._log.end)
        if self._known > (entries[-1][0] if entries else 0):
            entries = with_epoch(entries, self._known, self._log.end)
        if entries:
            self._events.info("epochs_rebuilt", entries=len(entries), first=entries[0][0], last=entries[-1][0])
        return entries
