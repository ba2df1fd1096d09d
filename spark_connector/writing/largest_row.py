"""Which row of a task is the largest, so that a broker's "too large" can be said of a column and a key.

Brokers bound two things of a message: its body, and its properties in all. Invariant: one look at the lengths of a
batch, no work per row. Thread rule: one task.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from remoting.protocol.frames.codes import ResponseCode
from spark_connector.errors import BrokerRefused, OptionError, phrase

if TYPE_CHECKING:
    import pyarrow as pa

WHERE = ("key", "mqttTopic", "topic")
"""Parts of a row that say which one it is."""
REFUSALS = (("body of", "body"), ("bytes of properties", "properties"))
"""What a broker says, and the part of a row that it says it of."""


@dataclass(slots=True)
class Largest:
    """One part of the rows: the most bytes of it so far, and the row they are in."""

    size: int = -1
    row: str = ""


class LargestRow:
    """The largest body and the largest properties seen so far and where they were to go."""

    def __init__(self, columns: Mapping[str, str]) -> None:
        """`columns`: what the user calls the parts of a row."""
        self._columns = {**columns, "properties": columns.get("headers", columns.get("properties", "properties"))}
        self._found = {part: Largest() for _, part in REFUSALS}

    def look(self, parts: Mapping[str, pa.Array]) -> None:
        """Take note of a batch's largest row."""
        import pyarrow.compute as pc

        self._note("body", pc.fill_null(pc.binary_length(parts["body"]), 0), parts)
        if "properties" in parts:
            self._note("properties", _sizes(parts["properties"]), parts)

    def _note(self, part: str, lengths: pa.Array, parts: Mapping[str, pa.Array]) -> None:
        import pyarrow.compute as pc

        size, known = pc.max(lengths).as_py() or 0, self._found[part]
        if size <= known.size:
            return
        at = pc.index(lengths, size).as_py()
        said = [
            f"{name} {_text(parts[name][at].as_py())!r}" for name in WHERE if name in parts and parts[name][at].is_valid
        ]
        known.size, known.row = size, ", ".join(said)

    @contextmanager
    def named(self) -> Iterator[None]:
        """Raise OptionError naming column and row where a broker refuses a message as too large."""
        try:
            yield
        except BrokerRefused as refusal:
            part = next((part for words, part in REFUSALS if words in str(refusal)), None)
            if refusal.code != ResponseCode.MESSAGE_ILLEGAL or part is None:
                raise
            found = self._found[part]
            raise OptionError(
                f"column {self._columns[part]!r} holds {found.size} bytes in the row with {found.row}: "
                f"{phrase(refusal)}"
            ) from refusal


def _sizes(column: pa.MapArray) -> pa.Array:
    """The bytes of each row's keys and values."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    edges = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]
    pairs = pc.add(pc.fill_null(pc.binary_length(column.keys), 0), pc.fill_null(pc.binary_length(column.items), 0))
    ends = np.concatenate([[0], np.cumsum(pairs.to_numpy(zero_copy_only=False), dtype=np.int64)])
    return pa.array(ends[edges[1:]] - ends[edges[:-1]])


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
