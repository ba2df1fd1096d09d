"""What a session was granted for one filter: the highest QoS, the options of its client, whether messages are checked.

A grant is a value: after another SUBSCRIBE, or when the access rules change, the subscription has another grant. Most
subscriptions have one of a few, so that `grant_of` returns the same object for the same terms, and a subscription costs
a reference to it.

Invariant: a grant never changes; what follows from its options is computed once. Thread rule: values, used on the
loop's thread.
"""

from __future__ import annotations

from functools import lru_cache

NO_LOCAL, RETAIN_AS_PUBLISHED = 1, 2
"""Bits of `session_body.FilterRequest.options`; the broker alone needs the others, about retained messages."""

GRANTS_MAX = 1_024
"""Grants kept to be used again; those with a Subscription Identifier differ between subscriptions."""


class Grant:
    """The terms of one subscription."""

    __slots__ = (
        "identifiers", "is_plain", "judged", "no_local", "options", "qos", "retain_as_published", "subscription_id",
    )  # fmt: skip

    def __init__(self, qos: int, options: int, subscription_id: int, judged: bool) -> None:
        self.qos = qos
        """The highest QoS of deliveries."""
        self.options = options
        self.subscription_id = subscription_id
        """Subscription Identifier; 0 = none."""
        self.judged = judged
        """Whether each message is checked by its own topic, because the filter covers some that may not be read."""
        self.no_local = options & NO_LOCAL != 0
        self.retain_as_published = options & RETAIN_AS_PUBLISHED != 0
        self.identifiers = (subscription_id,) if subscription_id else ()
        """The Subscription Identifiers of a message that no other subscription matches."""
        self.is_plain = not (self.no_local or self.retain_as_published or subscription_id or judged)
        """Whether deliveries are topic and payload alone, as far as the subscription decides."""

    def checked(self, judged: bool) -> Grant:
        """The same terms, with or without a check of each message."""
        return grant_of(self.qos, self.options, self.subscription_id, judged)

    def limited(self, qos: int) -> Grant:
        """The same terms with at most this QoS."""
        return grant_of(min(qos, self.qos), self.options, self.subscription_id, self.judged)


def grant_of(qos: int, options: int = 0, subscription_id: int = 0, judged: bool = False) -> Grant:
    """The grant of these terms; options as in `session_body.FilterRequest`."""
    return _grant(qos, options, subscription_id, judged)


@lru_cache(maxsize=GRANTS_MAX)
def _grant(qos: int, options: int, subscription_id: int, judged: bool) -> Grant:
    return Grant(qos, options, subscription_id, judged)
