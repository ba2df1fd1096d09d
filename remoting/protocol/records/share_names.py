"""Names of shared subscriptions: `$share/<group>/<filter>`, in MQTT 5 (§4.8.2) and, with the same meaning, in 3.1.1.

The group's name is at least one character without `/`, `+` and `#`; what follows it is an ordinary topic filter, and
that inner filter is what is authorized and what messages are matched with. A name that begins with `$share` but has no
slash behind that is an ordinary topic.
Invariant: `share_of(name)` is None exactly for ordinary filters. Thread rule: pure functions.
"""

from __future__ import annotations

from typing import NamedTuple

from remoting.protocol.records.topics import validate_filter

SHARE_PREFIX = "$share/"
NEVER_SERVED = {
    "$delayed/": "a delayed message comes by its own topic, not by $delayed/",
    "$queue/": "$queue/ is not offered, use $share/<group>/<filter>",
    "$exclusive/": "exclusive subscriptions are not offered",
}
"""Beginnings of filters that mean something at other brokers, or to publishers only; no MQTT client publishes there."""
SYS_PREFIX, STORED_SYS_PREFIX = "$SYS/", "$SYS/broker/connection/"
"""What proxies say of themselves is no message of the log, so it cannot be shared; the state of bridges can."""


class Share(NamedTuple):
    """The two parts of a shared subscription's name."""

    group: str
    filter: str


def share_of(topic_filter: str) -> Share | None:
    """Return group and inner filter of a shared subscription, as they stand; None for an ordinary filter."""
    if not topic_filter.startswith(SHARE_PREFIX):
        return None
    group, _, inner = topic_filter[len(SHARE_PREFIX) :].partition("/")
    return Share(group, inner)


def inner_filter(topic_filter: str) -> str:
    """Return the filter that messages are matched with: the inner one of a shared subscription, else the filter."""
    share = share_of(topic_filter)
    return topic_filter if share is None else share.filter


def validate_subscription(topic_filter: str) -> str | None:
    """Return what is wrong with a filter, shared or not, as a client may subscribe to it; None if nothing.

    What could never get a message is wrong too: its client would wait for ever.
    """
    share = share_of(topic_filter)
    wanted = topic_filter if share is None else share.filter
    for beginning, problem in NEVER_SERVED.items():
        if wanted.startswith(beginning):
            return problem
    if share is None:
        return validate_filter(topic_filter)
    if not share.group:
        return "a share name has at least one character"
    if "+" in share.group or "#" in share.group:
        return "a share name has neither + nor #"
    if share.filter.startswith((SHARE_PREFIX, "$history/")):
        return "a shared subscription is not shared again and has no history"
    if share.filter.startswith(SYS_PREFIX) and not share.filter.startswith(STORED_SYS_PREFIX):
        return "$SYS values are not shared"
    return validate_filter(share.filter)
