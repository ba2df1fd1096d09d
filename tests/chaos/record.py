"""The events of a run as they happened: one JSON object per line, each with seconds since the start of the run.

Thread rule: any thread may note.
"""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any


class Record:
    """The event log of a run."""

    def __init__(self, path: Path | None = None) -> None:
        self.begun = time.monotonic()
        self.entries: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self._stream = path.open("w", buffering=1) if path is not None else None

    def now(self) -> float:
        """Seconds since the start of the run."""
        return time.monotonic() - self.begun

    def note(self, event: str, **details: Any) -> float:
        """Write an event; returns its time."""
        with self._lock:
            at = self.now()
            entry = {"at": round(at, 4), "event": event, **details}
            self.entries.append(entry)
            if self._stream is not None:
                self._stream.write(json.dumps(entry) + "\n")
        return at

    def of(self, event: str) -> list[dict[str, Any]]:
        """All entries of one event."""
        with self._lock:
            return [entry for entry in self.entries if entry["event"] == event]

    def close(self) -> None:
        """Close the file."""
        if self._stream is not None:
            self._stream.close()
