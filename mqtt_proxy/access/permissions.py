"""What the client of one connection may do, decided by `authorize` and cached where it is needed often.

When the rules change, a subscription that is no longer allowed stops delivering at once, its filter is unsubscribed at
the broker, and it is counted and logged; one that is allowed a lower QoS continues with that. Deliveries in flight are
sent again only where their topic may still be read. A lost subscription is not restored with the rules: the client
subscribes again. The same holds for rules that changed while a stored session was without its client.

A device publishes to a handful of topics over and over; the first publish to each runs the access check, the others
cost one lookup (`JudgedTopics`). What is cached is a mask of the kinds of message allowed (QoS, retained), so that one
entry covers all of them; with a mask that allows less than all, the payload is checked too, which only the state of a
bridge needs.

Invariant: nothing is published or delivered that `authorize` would refuse at that moment; what is cached follows from
the rules in force. Loop rule: on the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from mqtt_proxy.access.auth import AccessControl
from mqtt_proxy.delivery.resume import Again
from mqtt_proxy.delivery.source import Source
from mqtt_proxy.metrics import ProxyMetrics
from mqtt_proxy.mqtt.codec.publish import Publish
from mqtt_proxy.mqtt.session.in_flight import RETAINED_QUEUE
from mqtt_proxy.shared import SharedSource
from remoting.access.rules import READ_RETAINED, WRITE_ALL_MASK, Action, Identity
from remoting.protocol.bodies.session_body import PHASE_PUBREL
from remoting.protocol.records.topics import says_something_else, share_of
from runtime.clock import Clock
from runtime.logs import get_logger

JUDGED_TOPICS_MAX = 256
"""Topics per connection whose permission is cached. Beyond it all are checked again."""

RETAIN_SHIFT = 3
"""Bits of the mask between a QoS and the same QoS retained, as in `rules.write_bit`."""


class WriteJudge(Protocol):
    """Decides what may be published."""

    def write_mask(self, identity: Identity, topic: bytes) -> int:
        """Which messages the identity may publish to the topic, as bits of `rules.write_bit`."""


class JudgedTopics:
    """The cached masks of one connection."""

    __slots__ = ("_identity", "_judge", "_masks")

    def __init__(self, judge: WriteJudge, identity: Identity) -> None:
        self._judge = judge
        self._identity = identity
        self._masks: dict[bytes, int] = {}

    def forget(self) -> None:
        """The rules have changed."""
        self._masks.clear()

    def first_refused(self, publishes: Sequence[Publish]) -> Publish | None:
        """The first message that may not be published; None when all may."""
        masks = self._masks
        for publish in publishes:
            mask = masks.get(publish.topic)
            if mask is None:
                mask = self._ask(publish.topic)
            if mask != WRITE_ALL_MASK and (
                not mask >> (publish.qos + RETAIN_SHIFT * publish.retain) & 1
                or says_something_else(publish.topic, publish.payload)
            ):
                return publish
        return None

    def sift(self, publishes: Sequence[Publish]) -> tuple[list[Publish], list[Publish]]:
        """(those that may be published, those that may not), each in their order."""
        allowed: list[Publish] = []
        refused: list[Publish] = []
        for publish in publishes:
            (allowed if self.first_refused((publish,)) is None else refused).append(publish)
        return allowed, refused

    def _ask(self, topic: bytes) -> int:
        if len(self._masks) >= JUDGED_TOPICS_MAX:
            self._masks.clear()
        mask = self._masks[topic] = self._judge.write_mask(self._identity, topic)
        return mask


LOG = get_logger("proxy.permissions")

READABLE_TOPICS_MAX = 1_024
"""Topics per connection whose read permission is cached; beyond it all are checked again."""

REFUSED = -1
"""Instead of a QoS: not at all."""


class Permissions:
    """The access of one connection, once its identity is known."""

    __slots__ = ("_access", "_expiry", "_judged", "_metrics", "_readable", "identity", "revision")

    def __init__(self, access: AccessControl, identity: Identity, metrics: ProxyMetrics) -> None:
        self._access = access
        self._metrics = metrics
        self._judged: JudgedTopics | None = None
        """Created when something is published."""
        self._readable: dict[bytes, int] | None = None
        """How topics may be read; created when a filter is subscribed of which only some may be."""
        self._expiry: asyncio.TimerHandle | None = None
        self.identity = identity
        self.revision = 0
        """How often the rules have changed: a check made before an await may have to be repeated after it."""

    def expires(self, clock: Clock, expired: Callable[[str], None]) -> None:
        """Call `expired` with a reason when the identity's proof expires."""
        if self.identity.until_ms is not None:
            left_s = max(0, self.identity.until_ms - clock.now_ms()) / 1_000
            reason = "credentials_expired: the token has run out"
            self._expiry = asyncio.get_running_loop().call_later(left_s, expired, reason)

    def close(self) -> None:
        """The connection has ended."""
        if self._expiry is not None:
            self._expiry.cancel()

    def rules_changed(self) -> None:
        """Drop what was cached under the previous rules."""
        self.revision += 1
        if self._judged is not None:
            self._judged.forget()
        self._readable = None

    def first_refused(self, publishes: Sequence[Publish]) -> Publish | None:
        """The first message that may not be published, counted and logged; None when all may."""
        judged = self._topics() if self._judged is None else self._judged
        refused = judged.first_refused(publishes)
        if refused is not None:
            self._refuse(refused)
        return refused

    def sift(self, publishes: list[Publish]) -> tuple[list[Publish], list[Publish]]:
        """(messages that may be published, messages that may not), in their order; refusals are counted and logged."""
        judged = self._topics() if self._judged is None else self._judged
        if judged.first_refused(publishes) is None:
            return publishes, []
        allowed, refused = judged.sift(publishes)
        for one in refused:
            self._refuse(one)
        return allowed, refused

    def _topics(self) -> JudgedTopics:
        judged = self._judged = JudgedTopics(self._access, self.identity)
        return judged

    def qos_allowed(self, topic_filter: str) -> int:
        """The highest QoS at which the filter may be subscribed to; REFUSED when it may not."""
        verdict = self._access.authorize(self.identity, Action.SUBSCRIBE, topic_filter)
        return verdict.qos_max if verdict.allowed else REFUSED

    def is_partial(self, topic_filter: str, *, history: bool = False) -> bool:
        """Whether each message of the filter has to be checked by its own topic; also when the filter is refused."""
        verdict = self._access.authorize(self.identity, Action.SUBSCRIBE, topic_filter)
        if history and verdict.allowed and not verdict.partial and share_of(topic_filter) is None:
            verdict = self._access.authorize(self.identity, Action.HISTORY, topic_filter)
        return verdict.partial or not verdict.allowed

    def may_read(self, topic: bytes, how: int) -> bool:
        """Whether a message of this topic may be delivered; `how` is a bit of `rules.READ_LIVE` and so on."""
        known = self._readable
        if known is None or len(known) >= READABLE_TOPICS_MAX:
            known = self._readable = {}
        mask = known.get(topic)
        if mask is None:
            mask = known[topic] = self._access.read_mask(self.identity, topic)
        return mask & how != 0

    def may_be_given(self, topic: bytes) -> bool:
        """Whether a retained message of this topic may be delivered."""
        return self.may_read(topic, READ_RETAINED)

    def revoked(self, subscriptions: Iterable[tuple[str, Source | SharedSource]]) -> list[str]:
        """Which of these filters may not be read any more; the QoS of the others is lowered where necessary."""
        lost = []
        for topic_filter, source in subscriptions:
            qos = self.qos_allowed(topic_filter)
            if qos == REFUSED or (_reads_history(source) and not self._may_read_history(topic_filter)):
                lost.append(topic_filter)
            else:
                judged = self.is_partial(topic_filter, history=_reads_history(source))
                source.grant = source.grant.limited(qos).checked(judged)
        if lost:
            self._metrics.subscriptions.revoked.value += len(lost)
            LOG.warning(
                "subscriptions_revoked", client_id=self.identity.client_id, user=self.identity.name, filters=lost
            )
        return lost

    def still_readable(self, again: Iterable[Again]) -> list[Again]:
        """Those deliveries in flight whose topic may still be read; the others are counted."""
        given = list(again)
        kept = [
            one
            for one in given
            if one.phase == PHASE_PUBREL or self._may_read(one.topic, retained=one.queue_id == RETAINED_QUEUE)
        ]
        if len(kept) < len(given):
            self._metrics.deliveries.skipped("not_authorized").value += len(given) - len(kept)
        return kept

    def _may_read_history(self, topic_filter: str) -> bool:
        return self._access.authorize(self.identity, Action.HISTORY, topic_filter).allowed

    def _may_read(self, topic: bytes, *, retained: bool) -> bool:
        return self._access.authorize(self.identity, Action.DELIVER, topic, retain=retained).allowed

    def _refuse(self, one: Publish) -> None:
        self._metrics.publishes.refused.child("not_authorized").value += 1
        self._access.authorize(self.identity, Action.PUBLISH, one.topic, qos=one.qos, retain=one.retain)


def _reads_history(source: Source | SharedSource) -> bool:
    """Whether messages from before the subscription are still to come."""
    return isinstance(source, Source) and (source.history is not None or source.cursor < source.live_from)
