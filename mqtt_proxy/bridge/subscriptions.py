"""SUBSCRIBE and UNSUBSCRIBE of one session.

The broker stores queue, subscription and start offset before it answers, and captures the retained messages in the
same moment; the SUBACK follows that answer, so a subscription is effective before its SUBACK and nothing between is
missed. A filter subscribed again gets its new QoS and its retained messages; its place in the log stays
[MQTT-3.8.4-3]. Filters that may not be read, or above the limit, get 0x80 and touch nothing else.
Invariant: `by_filter` is what the broker has for this session. Loop rule: on the loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mqtt_proxy.bridge.delivery import Delivery
from mqtt_proxy.bridge.link import Link
from mqtt_proxy.bridge.permissions import REFUSED
from mqtt_proxy.bridge.retained import RetainedRun
from mqtt_proxy.bridge.source import Source
from mqtt_proxy.bridge.sys_tree import PREFIX as SYS_PREFIX
from mqtt_proxy.bridge.sys_tree import Follower
from mqtt_proxy.metrics import ProxyMetrics
from remoting.protocol.codes import RequestCode
from remoting.protocol.session_body import FAILURE, FilterRequest, Subscribe, Subscribed, Unsubscribe, decode, encode
from runtime.logs import get_logger

LOG = get_logger("proxy.subscriptions")


class Subscriptions:
    """The filters of one session and the sources they are."""

    __slots__ = (
        "_client_id",
        "_delivery",
        "_durable",
        "_fresh_sys",
        "_link",
        "_max",
        "_metrics",
        "_sys",
        "_too_wide",
        "by_filter",
        "epoch",
    )

    def __init__(
        self,
        client_id: str,
        link: Link,
        delivery: Delivery,
        metrics: ProxyMetrics,
        *,
        durable: bool,
        filters_max: int,
        too_wide: Callable[[str], bool],
        follower: Follower,
    ) -> None:
        self._client_id = client_id
        self._link = link
        self._delivery = delivery
        self._metrics = metrics
        self._durable = durable
        self._max = filters_max
        self._too_wide = too_wide
        self._sys = follower
        self._fresh_sys: list[str] = []
        """`$SYS` filters whose values are still to be sent, behind the SUBACK or the CONNACK."""
        self.epoch = 0
        self.by_filter: dict[str, Source] = {}

    def restore(self, topic_filter: str, queue_id: int, qos: int, cursor: int) -> Source:
        """A stored subscription goes on at `cursor`."""
        source = self._delivery.add(topic_filter, queue_id, qos, cursor)
        self.by_filter[topic_filter] = source
        if topic_filter.startswith(SYS_PREFIX):
            self._fresh_sys.append(topic_filter)
        return source

    async def subscribe(
        self, filters: Sequence[tuple[str, int]], qos_allowed: Callable[[str], int]
    ) -> tuple[list[int], list[tuple[Source, list[int]]]]:
        """Subscribe; (SUBACK codes, retained positions per source, for `begin_retained` once the SUBACK is out).

        `qos_allowed` says up to which QoS a filter may be read, and less than 0 when it may not.

        Raises Refused or LinkDownError; nothing of the request holds then.
        """
        codes = [FAILURE] * len(filters)
        highest = [self._admit(topic_filter, qos_allowed) for topic_filter, _ in filters]
        asked = [index for index, qos in enumerate(highest) if qos >= 0]
        if not asked:
            return codes, []
        request = Subscribe(
            self._client_id,
            self.epoch,
            self._durable,
            [FilterRequest(filters[index][0], min(filters[index][1], highest[index])) for index in asked],
        )
        reply = decode(Subscribed, await self._link.request(RequestCode.SUBSCRIBE, encode(request)))
        retained = dict(reply.retained)
        runs = []
        for order, (index, result) in enumerate(zip(asked, reply.results, strict=True)):
            codes[index] = min(result.code, FAILURE)
            if result.code >= FAILURE:
                self._metrics.refused_subscriptions.child("broker").value += 1
                continue
            source = self._granted(filters[index][0], result.queue_id, result.code, result.offset)
            if retained.get(order):
                runs.append((source, retained[order]))
        return codes, runs

    def begin_retained(self, runs: Sequence[tuple[Source, list[int]]]) -> None:
        """Send the retained messages of fresh subscriptions, and the present `$SYS` values of fresh ones of these."""
        for topic_filter in self._fresh_sys:
            self._sys.follow(topic_filter)
        self._fresh_sys.clear()
        for source, positions in runs:
            if source.retained is None:
                source.retained = RetainedRun(self._link, positions, self._delivery.wake)
            else:
                source.retained.extend(positions)
        self._delivery.wake()

    async def unsubscribe(self, filters: Sequence[str]) -> None:
        """Unsubscribe; unknown filters are no error [MQTT-3.10.4-5]. Raises Refused or LinkDownError."""
        request = Unsubscribe(self._client_id, self.epoch, self._durable, list(filters))
        await self._link.request(RequestCode.UNSUBSCRIBE, encode(request))
        self.drop(filters)

    def drop(self, filters: Sequence[str]) -> None:
        """Deliver nothing from these any more."""
        for topic_filter in filters:
            source = self.by_filter.pop(topic_filter, None)
            if source is not None:
                self._delivery.remove(source)
                self._sys.unfollow(topic_filter)
        self._fresh_sys = [topic_filter for topic_filter in self._fresh_sys if topic_filter in self.by_filter]

    async def subscribe_again(self) -> None:
        """After a loss of the broker: say all filters again; a queue that is still the same is read on, not anew."""
        filters = [FilterRequest(topic_filter, source.qos) for topic_filter, source in self.by_filter.items()]
        if not filters:
            return
        request = Subscribe(self._client_id, self.epoch, self._durable, filters)
        reply = decode(Subscribed, await self._link.request(RequestCode.SUBSCRIBE, encode(request)))
        for wanted, result in zip(filters, reply.results, strict=True):
            if result.code < FAILURE:
                self._granted(wanted.filter, result.queue_id, result.code, result.offset)

    def _granted(self, topic_filter: str, queue_id: int, qos: int, offset: int) -> Source:
        source = self.by_filter.get(topic_filter)
        if source is not None and source.queue_id == queue_id:
            source.qos = qos
            if topic_filter.startswith(SYS_PREFIX):
                self._fresh_sys.append(topic_filter)  # subscribed again: its values come again [MQTT-3.8.4-3]
            return source
        if source is not None:
            self._delivery.remove(source)
        return self.restore(topic_filter, queue_id, qos, offset)

    def _admit(self, topic_filter: str, qos_allowed: Callable[[str], int]) -> int:
        """Up to which QoS the filter may be subscribed to; REFUSED when it may not."""
        reason, qos = "", REFUSED
        if topic_filter.startswith("$share/"):  # granting it as a plain filter would deliver nothing, silently
            reason = "shared"
        elif self._too_wide(topic_filter):
            reason = "too_wide"
        elif (qos := qos_allowed(topic_filter)) == REFUSED:
            reason = "not_authorized"
        elif topic_filter not in self.by_filter and len(self.by_filter) >= self._max:
            reason = "too_many"
        if not reason:
            return qos
        self._metrics.refused_subscriptions.child(reason).value += 1
        LOG.info("subscription_refused", client_id=self._client_id, filter=topic_filter, reason=reason)
        return REFUSED
