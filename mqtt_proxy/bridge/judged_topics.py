"""Which topics a client may publish to, remembered for the few it uses.

A device publishes to a handful of topics over and over; the first publish to each asks the access check, the others
cost one look-up. Invariant: what is remembered is what the access check said. Loop rule: on the loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mqtt_proxy.mqtt.packets import Publish

JUDGED_TOPICS_MAX = 256
"""Topics per connection whose permission is remembered. Beyond it all are judged again."""


class JudgedTopics:
    """The verdicts of one connection."""

    __slots__ = ("_judge", "_verdicts")

    def __init__(self, judge: Callable[[bytes], bool]) -> None:
        self._judge = judge
        self._verdicts: dict[bytes, bool] = {}

    def first_refused(self, publishes: Sequence[Publish]) -> bytes | None:
        """The first topic that may not be published to; None when all may."""
        verdicts = self._verdicts
        for publish in publishes:
            verdict = verdicts.get(publish.topic)
            if verdict is None:
                if len(verdicts) >= JUDGED_TOPICS_MAX:
                    verdicts.clear()
                verdict = verdicts[publish.topic] = self._judge(publish.topic)
            if not verdict:
                return publish.topic
        return None
