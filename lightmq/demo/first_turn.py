"""Waits until a query that was started has made its first turn, so that the next one is started only then.

Two queries that plan their first batch at the same moment in one driver can both fail: Spark serialises a map of the
session that the other query is still filling ("Task not serializable: Illegal size of collection"). Invariant: `wait`
returns once the query made progress, found nothing to do, or ended. Thread rule: Spark's listener thread writes under
the condition, the main thread waits on it.
"""

from __future__ import annotations

import threading
from typing import Any

from pyspark.sql.streaming import StreamingQuery, StreamingQueryListener

FIRST_TURN_TIMEOUT_S = 120.0
"""Longest wait for one query; after it the next one is started all the same."""


class FirstTurn(StreamingQueryListener):
    """Add it to `spark.streams` before the first query is started."""

    def __init__(self) -> None:
        self._turned: set[str] = set()
        self._changed = threading.Condition()

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's names
        """A start is not a turn yet."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """A batch was made."""
        self._note(event.progress.id)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """There was nothing to read."""
        self._note(event.id)

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """It failed, or was stopped."""
        self._note(event.id)

    def wait(self, query: StreamingQuery, timeout_s: float = FIRST_TURN_TIMEOUT_S) -> bool:
        """Wait for the first turn; False when it did not come in time."""
        with self._changed:
            return self._changed.wait_for(lambda: str(query.id) in self._turned, timeout_s)

    def _note(self, query_id: object) -> None:
        with self._changed:
            self._turned.add(str(query_id))
            self._changed.notify_all()
