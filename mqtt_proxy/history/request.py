"""Messages from before a subscription: how a client asks for them.

MQTT 5: one user property of SUBSCRIBE, for all filters of the packet:

    from-time     milliseconds since 1970, or ISO 8601 (without a zone: UTC)
    from-offset   offset in the filter's queue; 0 = everything that is kept
    last          number of messages

Both versions: `$history/<name>=<value>/<filter>`, for that filter alone. It is the subscription `<filter>`, begun
earlier, and is unsubscribed from under either name. Invariant: what is asked for in a way that is not understood is
refused, never ignored. Thread rule: pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from remoting.protocol.bodies.session_body import HistoryStart

HISTORY_PREFIX = "$history/"
NAMES = ("from-time", "from-offset", "last")
NUMBER_DIGITS_MAX = 18
"""Longest number taken, so that it fits 63 bits; a longer one is refused."""


class NotUnderstood(ValueError):
    """A wish that names no time, offset or number of messages."""


def plain_filter(topic_filter: str) -> str:
    """Return the filter that a `$history/` name subscribes to; every other filter is itself."""
    if not topic_filter.startswith(HISTORY_PREFIX):
        return topic_filter
    return topic_filter[len(HISTORY_PREFIX) :].partition("/")[2]


def start_of_filter(topic_filter: str) -> HistoryStart | None:
    """Return what a `$history/` name asks for; None for every other filter. Raises NotUnderstood."""
    if not topic_filter.startswith(HISTORY_PREFIX):
        return None
    said, slash, inner = topic_filter[len(HISTORY_PREFIX) :].partition("/")
    name, equals, value = said.partition("=")
    if not (slash and inner and equals):
        raise NotUnderstood(f"{topic_filter!r} is not {HISTORY_PREFIX}<name>=<value>/<filter>")
    return _start(name, value)


def start_of_user(user: Iterable[tuple[bytes, bytes]]) -> HistoryStart | None:
    """Return what the user properties of a SUBSCRIBE ask for; None when nothing. Raises NotUnderstood."""
    found = [(key.decode(), value) for key, value in user if key in _KEYS]
    if not found:
        return None
    if len(found) > 1:
        raise NotUnderstood(f"more than one of {', '.join(NAMES)}")
    name, value = found[0]
    return _start(name, value.decode("utf-8", "replace"))


_KEYS = frozenset(name.encode() for name in NAMES)


def _start(name: str, value: str) -> HistoryStart:
    if name == "from-time":
        return HistoryStart(from_ms=_time_ms(value))
    if name == "from-offset":
        return HistoryStart(from_offset=_number(name, value))
    if name == "last":
        return HistoryStart(last=_number(name, value))
    raise NotUnderstood(f"{name!r} is none of {', '.join(NAMES)}")


def _number(name: str, value: str) -> int:
    if not (value.isascii() and value.isdigit()) or len(value) > NUMBER_DIGITS_MAX:
        raise NotUnderstood(f"{name}={value[:40]!r} is not a number of at most {NUMBER_DIGITS_MAX} digits")
    return int(value)


def _time_ms(value: str) -> int:
    if value.isascii() and value.isdigit():
        return _number("from-time", value)
    try:
        moment = datetime.fromisoformat(value)
        zoned = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return max(0, int(zoned.timestamp() * 1_000))
    except (ValueError, OverflowError) as error:
        raise NotUnderstood(f"from-time={value[:40]!r} is neither milliseconds nor ISO 8601") from error
