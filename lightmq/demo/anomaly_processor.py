"""The anomaly rule inside Spark: state per sensor, readings in, commands out.

Invariant: the readings of one sensor are judged in the order of their queue, batch after batch, so the commands are a
function of the log. Runs in Spark's Python workers: one instance per task, no shared state.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from lightmq.demo.rule import SensorState, step

STATE_SCHEMA = "readings long, mean double, variance double, since_alarm long"
COMMAND_SCHEMA = "sensor string, reading string, value double, deviation double, sent_ms long, time_ms long"


class AnomalyProcessor(StatefulProcessor):
    """Keeps a `SensorState` per sensor and yields one command row per anomaly."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state of the sensor."""
        self._state = handle.getValueState("sensor", STATE_SCHEMA)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803, ARG002
        """Judge the new readings of one sensor."""
        stored = self._state.get() if self._state.exists() else None
        state = SensorState(*stored) if stored is not None else SensorState()
        for row in sorted(rows, key=lambda reading: reading.queueOffset):
            state, deviation = step(state, row.value)
            if deviation is not None:
                yield Row(
                    sensor=key[0],
                    reading=row.id,
                    value=row.value,
                    deviation=deviation,
                    sent_ms=row.sent_ms,
                    time_ms=row.time_ms,
                )
        self._state.update((state.readings, state.mean, state.variance, state.since_alarm))

    def close(self) -> None:
        """Nothing is held outside Spark's state."""
