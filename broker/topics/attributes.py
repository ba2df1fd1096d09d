"""Attributes of a topic in RocketMQ's words: which there are, what they may say, and how a request changes them.

A request writes changes as `+name=value,-name`; a topic keeps plain `name: value`. Invariant: a kept attribute is one
of `ATTRIBUTES` with a value that its rule accepts, and one that is fixed at creation never changes afterwards. Pure
functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode

QUEUE_TYPE = "queue.type"
SIMPLE_QUEUE = "SimpleCQ"
BATCH_QUEUE = "BatchCQ"
RETENTION_MS = "retention.ms"
RETENTION_BYTES = "retention.bytes"
NUMBER_DIGITS_MAX = 18


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute: the rule its value must keep, the sentence for one that does not, whether it may change later."""

    accepts: Callable[[str], bool]
    needed: str
    fixed: bool = False


def _one_of(*values: str, fixed: bool = False) -> Attribute:
    return Attribute(values.__contains__, " or ".join(values), fixed)


def _number(value: str) -> bool:
    return value.isascii() and value.isdigit() and len(value) <= NUMBER_DIGITS_MAX


ATTRIBUTES: dict[str, Attribute] = {
    QUEUE_TYPE: _one_of(SIMPLE_QUEUE, BATCH_QUEUE, fixed=True),
    RETENTION_MS: Attribute(_number, "a number of milliseconds, 0 for ever"),
    RETENTION_BYTES: Attribute(_number, "a number of bytes, 0 without a limit"),
    "message.type": _one_of("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "MIXED"),
}
"""Every attribute a topic of this broker can have; an unknown one is refused, because it would be a promise."""


def parse_changes(text: str) -> dict[str, str | None]:
    """Name -> new value, or None to remove it. Refused for a form that is neither `+name=value` nor `-name`."""
    changes: dict[str, str | None] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        sign, (name, equals, value) = part[0], part[1:].partition("=")
        if sign not in "+-" or not name or (sign == "+") != bool(equals and value):
            raise _refused(f"attribute change {part!r} is neither +name=value nor -name")
        if name in changes:
            raise _refused(f"attribute {name!r} is named twice")
        changes[name] = value if sign == "+" else None
    return changes


def changed(kept: Mapping[str, str], text: str, *, created: bool) -> dict[str, str]:
    """The attributes after a request's changes.

    Raises:
        Refused: an unknown name, a value outside its rule, or a change of what is fixed at creation.
    """
    result = dict(kept)
    for name, value in parse_changes(text).items():
        attribute = ATTRIBUTES.get(name)
        if attribute is None:
            raise _refused(f"attribute {name!r} is not supported here; there are: {', '.join(sorted(ATTRIBUTES))}")
        if value is not None and not attribute.accepts(value):
            raise _refused(f"attribute {name!r} is {attribute.needed}, not {value!r}")
        if attribute.fixed and not created and value != result.get(name):
            raise _refused(f"attribute {name!r} is fixed when the topic is created")
        if value is None:
            result.pop(name, None)
        else:
            result[name] = value
    return result


def is_batch(attributes: Mapping[str, str]) -> bool:
    """True for a topic that takes batch records."""
    return attributes.get(QUEUE_TYPE) == BATCH_QUEUE


def _refused(remark: str) -> Refused:
    return Refused(ResponseCode.INVALID_PARAMETER, remark)
