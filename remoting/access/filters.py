"""Sets of topics as filters describe them: is one inside the other, do two share a topic?

A filter stands for the set of topic names it matches: `+` any one level, `#` any number of further levels and none,
a wildcard in the first level nothing that begins with `$`. Both answers are exact for single filters, not guesses:
what `contains` denies has a topic as witness, and so has what `intersects` affirms.

Invariant: agrees with matching every topic one by one (tests/property/test_access_filters.py). Pure; filters are valid
and split into levels by `split`.
"""

from __future__ import annotations

Levels = tuple[bytes, ...]
"""A filter or topic name, split at its slashes."""

PLUS = b"+"
HASH = b"#"
WILDCARDS = (PLUS, HASH)


def split(text: str | bytes) -> Levels:
    """The levels of a filter or topic name."""
    raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    levels = tuple(raw.split(b"/"))
    # `#` alone and `+/#` match the same topics: a topic has a first level. One spelling for both.
    return (PLUS, HASH) if levels == (HASH,) else levels


def covers(wanted: Levels, topic: Levels) -> bool:
    """Whether the filter matches the topic name."""
    if wanted[0] == PLUS and topic[0].startswith(b"$"):
        return False
    for index, level in enumerate(wanted):
        if level == HASH:
            return True
        if index >= len(topic) or (level not in (PLUS, topic[index])):
            return False
    return len(wanted) == len(topic)


def contains(outer: Levels, inner: Levels) -> bool:
    """Whether every topic the inner filter matches is matched by the outer one too."""
    if outer[0] == PLUS and inner[0].startswith(b"$"):
        return False
    for index, level in enumerate(outer):
        if level == HASH:
            return True  # the rest of the inner one, or its end: `a/#` matches `a`
        if index >= len(inner):
            return False
        other = inner[index]
        # A `#` here also stands for the end, which a level of the outer one does not; and `+` for any word.
        if other == HASH or (level != other and (level != PLUS)):
            return False
    return len(outer) == len(inner)


def intersects(one: Levels, other: Levels) -> bool:
    """Whether some topic is matched by both filters."""
    if (one[0] == PLUS and other[0].startswith(b"$")) or (other[0] == PLUS and one[0].startswith(b"$")):
        return False
    for left, right in zip(one, other, strict=False):
        if HASH in (left, right):
            return True
        if left != right and PLUS not in (left, right):
            return False
    longer, length = (one, len(other)) if len(one) > len(other) else (other, len(one))
    return len(longer) == length or longer[length] == HASH
