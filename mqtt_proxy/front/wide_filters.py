"""Whether one topic filter matches everything that another one matches.

Invariant: `as_wide_as(wide, narrow)` exactly when each topic matched by `narrow` is matched by `wide`. Both are valid
filters. Pure functions.
"""

from __future__ import annotations

SHARED_PREFIX = "$share/"


def plain_filter(topic_filter: str) -> str:
    """The filter of a subscription without `$share/group/`."""
    if not topic_filter.startswith(SHARED_PREFIX):
        return topic_filter
    return topic_filter.removeprefix(SHARED_PREFIX).partition("/")[2]


def as_wide_as(wide: str, narrow: str) -> bool:
    """Whether `wide` matches all that `narrow` matches; `#` and `+/#` are the same."""
    outer, inner = _levels(wide), _levels(narrow)
    if outer[0] == "+" and inner[0].startswith("$"):
        return False
    for index, level in enumerate(outer):
        if level == "#":
            return True  # the rest, or the end: `a/#` matches `a`
        if index >= len(inner) or inner[index] == "#" or level not in ("+", inner[index]):
            return False
    return len(outer) == len(inner)


def _levels(topic_filter: str) -> list[str]:
    return ["+", "#"] if topic_filter == "#" else topic_filter.split("/")
