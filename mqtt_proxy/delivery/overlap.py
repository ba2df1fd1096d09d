"""One copy per message and session, however many of its subscriptions match.

A record names every queue it stands in. Of a session's sources that it stands in, the oldest delivers it, with the
highest QoS any of them grants [MQTT-3.3.5-1]; the others pass over it, but not before the oldest has come that far.
So no source's cursor runs ahead of a message that another one still has to send, and a subscription can be dropped at
any time without a gap. A topic's messages always come through one source, in order.
Invariant: pure decision on numbers; the caller moves the cursors. Thread rule: pure function.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mqtt_proxy.delivery.source import Source

PASSED = -1
"""An older source has sent it: pass over."""
WAIT = -2
"""An older source will send it: do not go on before it has."""


def decide(
    dispatch: Iterable[tuple[int, int]],
    source: Source,
    by_queue: Mapping[int, Source],
    offset: int,
    *,
    own: bool = False,
) -> int:
    """What `source` does with the record at its `offset`: send with the QoS answered, PASSED or WAIT.

    `own`: the client published it itself, so to its subscriptions with No Local it does not belong [MQTT-3.8.3-3].
    """
    if own and source.no_local:
        return PASSED
    qos = source.qos
    older: Source | None = None
    older_offset = 0
    for queue_id, other_offset in dispatch:
        other = by_queue.get(queue_id)
        if other is None or other is source or (own and other.no_local):
            continue
        if other.serial < source.serial:
            if other.cursor <= other_offset:
                return WAIT
            if older is None or other.serial < older.serial:
                older, older_offset = other, other_offset
        elif other.qos > qos and other_offset >= other.start:
            qos = other.qos
    if older is None:
        return qos
    source.leave_to(older, offset, older_offset)
    return PASSED


def gather(
    dispatch: Iterable[tuple[int, int]], source: Source, by_queue: Mapping[int, Source], *, own: bool = False
) -> tuple[list[int], bool]:
    """The Subscription Identifiers of all subscriptions the one copy stands for [MQTT-3.3.4-4], and whether any of them
    wants the retain flag as it was published.
    """
    identifiers = [source.subscription_id] if source.subscription_id else []
    as_published = source.retain_as_published
    for queue_id, offset in dispatch:
        other = by_queue.get(queue_id)
        if other is None or other is source or (own and other.no_local) or offset < other.start:
            continue
        as_published = as_published or other.retain_as_published
        if other.subscription_id and other.subscription_id not in identifiers:
            identifiers.append(other.subscription_id)
    return identifiers, as_published
