"""What of a stream's queues its rows are: the filters of a query, and what becomes of them when they change.

A position says how far a queue was read, not which of its rows were wanted. A query whose filter was widened goes on
behind the older rows of what it wants now, and nobody would see that they are left out. So offsets say which filters
they were made with, and a query that goes on with others is compared with them:

    narrower                                     goes on
    topics of parents that were not read before  goes on; those parents begin at their beginning
    wider, within what was read before           the older rows are left out: a loss, see failOnDataLoss
    from a topic's own queue to a filter that    refused: the topic's rows would be read again
    covers it, or back

Invariant: what is not known of an earlier release is not compared. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from remoting.protocol.records import names, topics
from spark_connector.errors import OptionError
from spark_connector.options.read_write import ReadOptions
from spark_connector.reading.selection import Selection

WILD = frozenset({"+", "#"})


@dataclass(frozen=True, slots=True)
class Wanted:
    """The filters of a query: of parent queues, of topics read from their own queues, tags and SQL92."""

    filters: tuple[str, ...] = ()
    exact: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    sql: str = ""

    def __bool__(self) -> bool:
        return bool(self.filters or self.exact or self.tags or self.sql)

    def to_json(self) -> dict[str, Any]:
        """As an offset has it: what is set."""
        form: dict[str, Any] = {"filters": list(self.filters), "exact": list(self.exact), "tags": list(self.tags)}
        return {name: value for name, value in {**form, "sql": self.sql}.items() if value}


EVERYTHING = Wanted()


def wanted_of(selection: Selection, options: ReadOptions) -> Wanted:
    """What a query wants, in a stable order."""
    return Wanted(
        tuple(sorted(selection.row_filters)), tuple(sorted(selection.exact)), tuple(sorted(options.tag)), options.sql
    )


def wanted_in(form: Mapping[str, Any]) -> Wanted:
    """What `Wanted.to_json` gave. Raises TypeError for another form."""
    lists = {name: tuple(map(str, form.get(name, ()))) for name in ("filters", "exact", "tags")}
    return Wanted(**lists, sql=str(form.get("sql", "")))


def left_out(before: Wanted, now: Wanted) -> str:
    """What of the older rows a query does not get that goes on with other filters; empty where it gets all it wants.

    Raises OptionError where it would get some a second time.
    """
    _check_queues(before, now)
    wider = [one for one in now.filters if _was_read(one, before) and not _is_covered(one, before.filters)]
    if before.filters and not now.filters and not now.exact:
        return "rows of the queues that the option 'mqttFilter' left out before"
    if wider:
        return f"rows of {wider[0]!r} (option 'mqttFilter'), which the filters before did not cover"
    if before.tags and not (now.tags and set(now.tags) <= set(before.tags)):
        return "rows with other tags than those of the option 'tag' before"
    if before.sql and before.sql != now.sql:
        return "rows that the option 'sql' left out before"
    return ""


def _check_queues(before: Wanted, now: Wanted) -> None:
    again = [one for one in before.exact if one not in now.exact and _is_covered(one, now.filters)]
    again += [one for one in now.exact if one not in before.exact and _is_covered(one, before.filters)]
    if again:
        raise OptionError(
            f"option 'mqttFilter': the topic {again[0]!r} has a queue of its own and shares those of its parent, and "
            "filters with and without wildcards read it from one or the other: with this checkpoint its rows would be "
            "read a second time. Start with a new checkpoint"
        )


def _was_read(one: str, before: Wanted) -> bool:
    """Whether queues that a filter reads were read before."""
    parents = {_parent(other) for other in before.filters}
    return bool(parents) and (_parent(one) in WILD or not parents.isdisjoint({_parent(one), *WILD}))


def _parent(one: str) -> str:
    first = one.partition("/")[0]
    return first if first in WILD else names.parent_topic(one.encode()).decode()


def _is_covered(one: str, filters: Iterable[str]) -> bool:
    """Whether every topic that a filter matches is matched by one of the others."""
    return any(other == one or all(topics.matches(other, text) for text in _samples(one)) for other in filters)


def _samples(one: str) -> Sequence[str]:
    """Topics that stand for all those of a filter; a wildcard is a level of no other name."""
    stem, hash_, _ = one.partition("#")
    plain = stem.replace("+", "\x01")
    return (plain,) if not hash_ else (plain + "\x01", plain + "\x01/\x01", *([plain[:-1]] if plain else []))
