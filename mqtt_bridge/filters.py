"""Whether two topic filters can match the same topic: what decides if two rules of a bridge can meet.

Invariant: `overlap` is symmetric, and True exactly when some topic name matches both filters (the empty one,
which nobody can publish to, counted). Pure functions.
"""

from __future__ import annotations

_PLUS, _HASH = "+", "#"


def overlap(first: str, second: str) -> bool:
    """Whether a topic exists that both valid filters match."""
    one, two = first.split("/"), second.split("/")
    if _hidden(one[0], two[0]):
        return False
    for left, right in zip(one, two, strict=False):
        if _HASH in (left, right):
            return True
        if left != right and _PLUS not in (left, right):
            return False
    rest = one[len(two) :] or two[len(one) :]
    return not rest or rest == [_HASH]  # `a/#` also matches `a`


def _hidden(one: str, two: str) -> bool:
    """A wildcard in the first level does not match what begins with a dollar sign."""
    return (one in (_PLUS, _HASH) and two.startswith("$")) or (two in (_PLUS, _HASH) and one.startswith("$"))
