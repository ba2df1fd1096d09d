"""History replayed at a multiple of its speed, then live, from one checkpoint."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.interop.spark_scenario import Frames, Publish

pytestmark = [pytest.mark.spark, pytest.mark.processes, pytest.mark.timeout(240)]
STEPS, STEP_ROWS, STEP_S = 30, 5, 0.2


def test_history_in_step_then_live_from_the_same_checkpoint(
    load: Frames, publish: Publish, spark: Any, tmp_path: Path
) -> None:
    """Two topics filled at the same time are read in step, and nothing is lost in the change to live."""
    for step in range(STEPS):
        publish("replay/1", range(step * STEP_ROWS, (step + 1) * STEP_ROWS))
        publish("again/1", range(step * STEP_ROWS, (step + 1) * STEP_ROWS))
        time.sleep(STEP_S)  # the replay reproduces the time between the messages
    assert load(mqttFilter="replay/1").count() == STEPS * STEP_ROWS  # workers are warm, or all is due at the first look
    seen: list[list[tuple[str, int]]] = []

    def note(frame: Any, _batch: int) -> None:
        rows = frame.orderBy("storeTimestamp").collect()
        seen.append([(row.topic, int(bytes(row.body))) for row in rows])

    def start(**options: str) -> Any:
        source = load(
            stream=True,
            mqttFilter="replay/+,again/+",
            columns="topic,body,storeTimestamp",
            startingOffsets="earliest",
            **options,
        )
        writer = source.writeStream.foreachBatch(note).option("checkpointLocation", str(tmp_path))
        return writer.start()

    query = start(replaySpeed="3")
    query.processAllAvailable()
    while sum(map(len, seen)) < 2 * STEPS * STEP_ROWS:  # what is held back does not count as available
        query.processAllAvailable()
    filled = [batch for batch in seen if batch]
    assert len(filled) > 1, "one batch would have been enough without the option"
    for batch in filled:
        by_topic = [{number // STEP_ROWS for topic, number in batch if topic == name} for name in ("replay", "again")]
        assert len(by_topic[0] ^ by_topic[1]) <= 2, f"the queues are not in step: {by_topic}"
    assert {number for _, number in filled[0]} != set(range(STEPS * STEP_ROWS))
    publish("replay/1", range(1000, 1010))
    while sum(map(len, seen)) < 2 * STEPS * STEP_ROWS + 10:
        query.processAllAvailable()
    query.stop()
    publish("replay/1", range(1010, 1020))
    live = start()
    live.processAllAvailable()
    live.stop()
    history = [(topic, number) for topic in ("again", "replay") for number in range(STEPS * STEP_ROWS)]
    news = [("replay", number) for number in range(1000, 1020)]
    assert sorted(row for batch in seen for row in batch) == sorted(history + news)
