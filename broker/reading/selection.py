"""Filters of RocketMQ consumers: tags (`a || b`) or an SQL92 expression over the properties.

Invariant: an expression means the same everywhere; an invalid one is Refused with 23 before anything is read. Pure.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from remoting.filtering import sql92
from remoting.filtering.judge import properties_of
from remoting.protocol.errors import LocalMisuse, Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.records.record import RecordView

TAG = "TAG"
SQL92 = "SQL92"
EXPRESSIONS_KEPT = 1_024
"""Parsed expressions that are cached."""

Selection = Callable[[RecordView], bool]


@functools.lru_cache(EXPRESSIONS_KEPT)
def selection(expression: str, kind: str) -> Selection | None:
    """A predicate over records; None for a subscription to all of them.

    Raises:
        Refused: an expression that cannot be parsed, or of a kind that is not known.
    """
    if kind == TAG:
        return _by_tags(expression)
    if kind != SQL92:
        remark = "The broker does not support consumer to filter message by " + kind
        raise Refused(ResponseCode.SYSTEM_ERROR, remark)
    try:
        predicate = sql92.parse(expression)
    except LocalMisuse as error:
        raise Refused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from error
    return lambda view: predicate(properties_of(view)) is True


def _by_tags(expression: str) -> Selection | None:
    named = [tag.strip() for tag in expression.split("||")]
    if "*" in named or not any(named):
        return None
    tags = frozenset(tag.encode() for tag in named if tag)
    return lambda view: bytes(view.tags) in tags
