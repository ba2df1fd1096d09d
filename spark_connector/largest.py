"""Which row of a task has the largest body, so that a broker's "too large" can be said of a column and a key.

Invariant: one look at the lengths of a batch, no work per row. Thread rule: one task.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from remoting.protocol.codes import ResponseCode
from spark_connector.errors import BrokerRefused, OptionError, phrase

if TYPE_CHECKING:
    import pyarrow as pa

WHERE = ("key", "mqttTopic", "topic")
"""Parts of a row that say which one it is."""


class LargestBody:
    """The largest body seen so far and where it was to go."""

    def __init__(self, column: str) -> None:
        self._column = column
        self._size = -1
        self._row = ""

    def look(self, parts: Mapping[str, pa.Array]) -> None:
        """Take note of a batch's largest row."""
        import pyarrow.compute as pc

        lengths = pc.fill_null(pc.binary_length(parts["body"]), 0)
        size = pc.max(lengths).as_py() or 0
        if size <= self._size:
            return
        at = pc.index(lengths, size).as_py()
        said = [
            f"{name} {_text(parts[name][at].as_py())!r}" for name in WHERE if name in parts and parts[name][at].is_valid
        ]
        self._size, self._row = size, ", ".join(said)

    @contextmanager
    def named(self) -> Iterator[None]:
        """Raise OptionError naming column and row where a broker refuses a message as too large."""
        try:
            yield
        except BrokerRefused as refusal:
            if refusal.code != ResponseCode.MESSAGE_ILLEGAL or "body of" not in str(refusal):
                raise
            raise OptionError(
                f"column {self._column!r} holds {self._size} bytes in the row with {self._row}: {phrase(refusal)}"
            ) from refusal


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
