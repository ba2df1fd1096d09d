"""RocketMQ's tag expressions: `*`, or tags separated by `||`.

Invariant: None stands for every message, a tuple for those whose tag is one of it. Pure.
"""

from __future__ import annotations

from remoting.protocol.errors import LocalMisuse

TAGS_MAX = 1_000
"""Tags of one expression; more are refused."""


def parse(text: str) -> tuple[str, ...] | None:
    """Return the tags of an expression, None for all messages. Raises LocalMisuse."""
    if text.strip() in {"", "*"}:
        return None
    found = tuple(dict.fromkeys(part.strip() for part in text.split("||")))
    if "" in found or "*" in found:
        raise LocalMisuse(f"the tag expression {text!r} has an empty part or a * among others")
    if len(found) > TAGS_MAX:
        raise LocalMisuse(f"a tag expression of {len(found)} tags, the limit is {TAGS_MAX}")
    return found
