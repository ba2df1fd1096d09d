"""Sessions per device with `transformWithState`: how long it sent readings without a pause, one row per session.

State is one value per device in RocksDB, below the checkpoint; a timer in event time ends a session that nothing
follows. The Row variant is used: three times as fast as the one with pandas when a batch has few rows per device.
The sessions go back over MQTT to `plant/<device>/sessions`, each exactly once.

    python examples/device_sessions.py [--once] [--server HOST:PORT] [--checkpoint FOLDER]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark user knows
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle, StreamingQuery

READING = "celsius double, time_ms long"
SESSION = "device string, first_ms long, last_ms long, readings long, highest double"
PAUSE_MS = 60_000
"""A session ends when a device was silent for longer than this."""


class DeviceSessions(StatefulProcessor):
    """Keeps the open session of each device and yields the ones that ended."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state of the device."""
        self._handle = handle
        self._open = handle.getValueState("open", "first_ms long, last_ms long, readings long, highest double")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        """Add readings to the open session, or end it and open the next."""
        session = self._open.get() if self._open.exists() else None
        for row in sorted(rows, key=lambda reading: reading.time_ms):
            if session is not None and row.time_ms - session[1] > PAUSE_MS:
                yield ended(key[0], session)
                session = None
            if session is None:
                session = (row.time_ms, row.time_ms, 0, row.celsius)
            first, last, count, highest = session
            session = (first, max(last, row.time_ms), count + 1, max(highest, row.celsius))
        if session is not None:
            self._open.update(session)
            self._wake_at(session[1] + PAUSE_MS)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
        """Nothing came for long enough."""
        if self._open.exists():
            yield ended(key[0], self._open.get())
            self._open.clear()

    def close(self) -> None:
        """Nothing is held outside Spark's state."""

    def _wake_at(self, time_ms: int) -> None:
        """One timer per device, at the end of the pause after its last reading."""
        for timer in list(self._handle.listTimers()):
            self._handle.deleteTimer(timer)
        self._handle.registerTimer(time_ms)


def ended(device: str, session: Any) -> Row:
    """One row of the result."""
    first, last, count, highest = session
    return Row(device=device, first_ms=first, last_ms=last, readings=count, highest=highest)


def sessions(spark: SparkSession, server: str) -> DataFrame:
    """Every session that ended."""
    rows = (
        spark.readStream.format("rocketmq")
        .option("nameServer", server)
        .option("mqttFilter", "plant/+/temp")
        .option("startingOffsets", "earliest")
        .option("columns", "mqttTopic,body")
        .load()
    )
    readings = rows.select(
        F.split("mqttTopic", "/")[1].alias("device"),
        F.from_json(F.col("body").cast("string"), READING).alias("reading"),
    ).select("device", "reading.*")
    timed = readings.where("time_ms IS NOT NULL").withColumn("time", F.timestamp_millis("time_ms"))
    return (
        timed.withWatermark("time", "10 seconds")
        .groupBy("device")
        .transformWithState(
            statefulProcessor=DeviceSessions(), outputStructType=SESSION, outputMode="Append", timeMode="EventTime"
        )
    )


def start(spark: SparkSession, server: str, checkpoint: str, *, once: bool) -> StreamingQuery:
    """Start the query that sends the sessions back."""
    topic = F.concat(F.lit("plant/"), F.col("device"), F.lit("/sessions"))
    answers = sessions(spark, server).select(topic.alias("mqttTopic"), F.to_json(F.struct("*")).alias("body"))
    writer = answers.writeStream.format("rocketmq").option("nameServer", server)
    writer = writer.option("checkpointLocation", checkpoint).outputMode("append")
    return (writer.trigger(availableNow=True) if once else writer).start()


def main() -> None:
    """Run until stopped."""
    from lightmq.spark import run_forever, session

    parser = argparse.ArgumentParser()
    parser.add_argument("--server", default="127.0.0.1:9876")
    parser.add_argument("--checkpoint", default="checkpoints/device-sessions")
    parser.add_argument("--once", action="store_true")
    options = parser.parse_args()
    spark = session("device-sessions")
    run_forever(lambda: start(spark, options.server, options.checkpoint, once=options.once))
    print("sessions written")


if __name__ == "__main__":
    main()
