"""The processor inside Spark gives what the rule gives, whatever the batches are; no JVM is needed to show it."""

from __future__ import annotations

from typing import Any

from pyspark.sql import Row

from lightmq.demo.anomaly_processor import AnomalyProcessor
from lightmq.demo.rule import WARM_UP_READINGS


class KeptState:
    """Spark's value state as the processor uses it."""

    def __init__(self) -> None:
        self._value: tuple[Any, ...] | None = None

    def exists(self) -> bool:
        return self._value is not None

    def get(self) -> tuple[Any, ...] | None:
        return self._value

    def update(self, value: tuple[Any, ...]) -> None:
        self._value = value


class Handle:
    """Hands out the state."""

    def __init__(self) -> None:
        self.state = KeptState()

    def getValueState(self, name: str, schema: str) -> KeptState:  # noqa: N802
        assert (name, schema.count(",")) == ("sensor", 3)
        return self.state


def reading(offset: int, value: float) -> Row:
    """One row of the query."""
    return Row(id=f"d-{offset}", value=value, queueOffset=offset, sent_ms=offset, time_ms=offset)


def test_commands_do_not_depend_on_batches_or_row_order() -> None:
    """The same readings in one batch, or reversed in two: the same commands."""
    values = [10 + 0.1 * (index % 3) for index in range(WARM_UP_READINGS + 10)] + [60.0] * 3
    rows = [reading(offset, value) for offset, value in enumerate(values)]
    found = []
    for batches in ([rows], [rows[:17][::-1], rows[17:][::-1]]):
        processor = AnomalyProcessor()
        processor.init(Handle())
        found.append(
            [row.asDict() for batch in batches for row in processor.handleInputRows(("heat",), iter(batch), None)]
        )
        processor.close()
    assert found[0] == found[1]
    assert [command["reading"] for command in found[0]] == [f"d-{WARM_UP_READINGS + 10}"]
    assert found[0][0]["sensor"] == "heat"
