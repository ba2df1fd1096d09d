"""In which order connected clients are listed, and where a page of the list begins.

    sort      a word of `SORTED_BY`, with `-` before it for the largest first; clients of the same value by id
    mark      the last client of a page: its id, with its value before it where that is what the list is sorted by

Proxies sort what they have, the broker merges their pages, a command merges those of several brokers: by the same keys.
Invariant: keys of different clients differ, so a page begins exactly behind the mark. A rate moves while one pages: a
client that passes the mark meanwhile is listed twice or not at all. Thread rule: plain values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

BY_ID = "id"
FIGURES = (
    "messages_in_per_s", "messages_out_per_s", "bytes_in_per_s", "bytes_out_per_s", "messages_in", "messages_out",
    "bytes_in", "bytes_out", "backlog", "in_flight", "since_ms",
)  # fmt: skip
"""Members of `ClientLine`."""
SORTED_BY = (BY_ID, *FIGURES)
Key = tuple[float, str]


class _Falling(str):
    """A text that comes before smaller ones."""

    __slots__ = ()

    def __lt__(self, other: str) -> bool:
        return str.__gt__(self, other)

    def __gt__(self, other: str) -> bool:
        return str.__lt__(self, other)


@dataclass(frozen=True, slots=True)
class ClientOrder:
    """The order of one list."""

    figure: str
    """What it is sorted by: one of `SORTED_BY`."""
    falls: bool

    @classmethod
    def parse(cls, sort: str) -> ClientOrder:
        """The order of a `sort`, by id for an empty one. Raises ValueError."""
        figure = sort.removeprefix("-") or BY_ID
        if figure not in SORTED_BY:
            raise ValueError(f"sort is one of {', '.join(SORTED_BY)}, with - before it for the largest first")
        return cls(figure, sort.startswith("-"))

    @property
    def sort(self) -> str:
        """The `sort` of this order."""
        return f"-{self.figure}" if self.falls else self.figure

    def value(self, row: Mapping[str, Any]) -> float:
        """The figure of a listed client; 0 where the list is by id."""
        return 0 if self.figure == BY_ID else row[self.figure]

    def key(self, value: float, client: str) -> Key:
        """The key of a client with this value of the figure, which is not looked at where the list is by id."""
        if self.figure == BY_ID:
            return 0, _Falling(client) if self.falls else client
        return -value if self.falls else value, client

    def mark(self, value: float, client: str) -> str:
        """The mark behind this client."""
        return client if self.figure == BY_ID else f"{value} {client}"

    def behind(self, mark: str) -> Key | None:
        """The key at a mark; None at the beginning. Raises ValueError for a mark of another list."""
        if not mark:
            return None
        if self.figure == BY_ID:
            return self.key(0, mark)
        value, _, client = mark.partition(" ")
        number = float(value)
        if not math.isfinite(number):
            raise ValueError(f"{value} is no place in a list")
        return self.key(number, client)
