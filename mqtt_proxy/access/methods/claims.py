"""Groups and rules that a token or a hook brings along with a name.

Invariant: fails closed: what cannot be understood is an error, never nothing, since it may have been a deny. No state.
"""

from __future__ import annotations

from remoting.access.acl_file import parse_lines
from remoting.access.rules import Rule
from remoting.protocol.errors import LightMQError

NAME_BYTES_MAX = 256
"""Longest user or group name."""
GROUPS_MAX = 64
RULES_MAX = 256
"""Most groups and rules of one identity; more let nobody in."""


class ClaimError(LightMQError):
    """Something that came along cannot be used; the text holds no value of it."""


def is_name(value: object) -> bool:
    """Whether this can be the name of a user or group."""
    return (
        isinstance(value, str) and value.isprintable() and 0 < len(value.encode("utf-8", "replace")) <= NAME_BYTES_MAX
    )


def texts(value: object, count_max: int = GROUPS_MAX, what: str = "groups") -> tuple[str, ...]:
    """A list of names. Raises BroughtError when it is something else."""
    if not isinstance(value, list) or len(value) > count_max or not all(map(is_name, value)):
        raise ClaimError(f"its {what} are not a list of at most {count_max} names")
    return tuple(value)


def rules_of(value: object, place: str) -> tuple[Rule, ...]:
    """Rules as they stand behind `pattern` in an access list. Raises BroughtError or AclError."""
    if value is None:
        return ()
    if not isinstance(value, list) or not 0 < len(value) <= RULES_MAX or not all(isinstance(one, str) for one in value):
        # An empty list would be no rules at all, which without an access list allows everything.
        raise ClaimError(f"its rules are not a list of 1 to {RULES_MAX} texts")
    return parse_lines(value, place)
