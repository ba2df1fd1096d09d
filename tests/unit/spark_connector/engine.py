"""What a source sees of the micro-batch engine: offsets as text, logs, replay, commits one batch late. No JVM."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from spark_connector.reading.stream_reader import RocketMQStreamReader


class Engine:
    """One query over its checkpoint (`offsets`, `commits`); make a new one over the same checkpoint to restart."""

    def __init__(self, make: Callable[[], RocketMQStreamReader], offsets: dict[int, str], commits: set[int]) -> None:
        self.reader = make()
        # The tasks get a reader of their own, pickled before any request.
        self._tasks_reader = pickle.dumps(make())
        self.offsets = offsets
        self.commits = commits
        self.rows: list[dict[str, Any]] = []
        self._last = max(offsets, default=-1)
        if self._last >= 0 and self._last not in commits:
            self._run(self._last)

    def limit(self) -> ReadLimit:
        """The limit that Spark passes to latestOffset."""
        return self.reader.getDefaultReadLimit()

    def step(self, *, fail: bool = False, limit: ReadLimit | None = None) -> int:
        """Make one batch if there is anything new; `fail` crashes after its offset was logged. Returns its rows."""
        if self._last in self.offsets:
            start = json.loads(self.offsets[self._last])
        else:
            start = json.loads(json.dumps(self.reader.initialOffset()))
        found = json.dumps(self.reader.latestOffset(start, limit or self.limit()))
        if self._last >= 0 and found == self.offsets[self._last]:
            return 0
        if self._last in self.commits:
            self.reader.commit(json.loads(self.offsets[self._last]))
        self._last += 1
        self.offsets[self._last] = found
        return -1 if fail else self._run(self._last)

    def drain(self) -> list[int]:
        """Step until nothing is new; the sizes of the batches."""
        sizes = []
        while size := self.step():
            sizes.append(size)
        return sizes

    def _run(self, batch: int) -> int:
        # Spark asks for the beginning again, and this answer reaches partitions() for batch 0.
        start = self.offsets[batch - 1] if batch else json.dumps(self.reader.initialOffset())
        parts = self.reader.partitions(json.loads(start), json.loads(self.offsets[batch]))
        before = len(self.rows)
        for part in parts:
            for arrow in pickle.loads(self._tasks_reader).read(pickle.loads(pickle.dumps(part))):
                self.rows += arrow.to_pylist()
        self.commits.add(batch)
        return len(self.rows) - before


ALL = ReadAllAvailable()
