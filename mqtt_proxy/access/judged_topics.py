"""Which topics a client may publish to, remembered for the few it uses.

A device publishes to a handful of topics over and over; the first publish to each asks the access check, the others
cost one look-up. What is remembered is a mask of the kinds of message allowed (QoS, retained), so that one entry
answers for all of them; a mask that allows less than all leaves room for a look at what the message says, which only
the state of a bridge wants. Invariant: what is remembered is what the rules in force say; `forget` when they change.
Loop rule: on the loop's thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mqtt_proxy.mqtt.codec.publish import Publish
from remoting.access.identity import Identity
from remoting.access.rules import WRITE_ALL_MASK
from remoting.protocol.records.connection_state import says_something_else

JUDGED_TOPICS_MAX = 256
"""Topics per connection whose permission is remembered. Beyond it all are judged again."""

RETAIN_SHIFT = 3
"""Bits of the mask between a QoS and the same QoS retained, as in `rules.write_bit`."""


class WriteJudge(Protocol):
    """Who knows what may be published."""

    def write_mask(self, identity: Identity, topic: bytes) -> int:
        """Which messages the identity may publish to the topic, as bits of `rules.write_bit`."""


class JudgedTopics:
    """The verdicts of one connection."""

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
