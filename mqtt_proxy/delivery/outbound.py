"""A slice of one source into the session: plain messages as runs (`send_run`), all others one by one.

A plain record has no properties but topic and client id, for a subscription without options and a client without topic
aliases. Everything else is processed record by record: properties, the rest of the expiry interval, Subscription
Identifiers, No Local, the retain flag as published, overlapping subscriptions.
[MQTT-3.3.1-12] a live message goes out with the retain flag off, [MQTT-3.3.1-8] one from a fresh SUBSCRIBE with it on.

Invariant: a cursor moves only with the message handed to the session, or with one that is not sent: expired
[MQTT-3.3.2-5], too large for its client [MQTT-3.1.2-25], of a topic it may not read (all counted), or withheld from its
own publisher. Messages that a session misses are counted in `Removed`, by reason: in total on the metrics page, and for
the session; the session's counts go to the broker with SESSION_CLOSE, which shows them (SESSION_LIST). Loop rule: on
the loop's thread.

A message that several subscriptions of a session match is sent once. A record names every queue it stands in. Of the
session's sources with these queues the oldest delivers it, with the highest QoS any of them grants [MQTT-3.3.5-1]; the
others pass over it, but not before the oldest has reached it. So no source's cursor runs ahead of a message that
another one still has to send, and a subscription can be dropped at any time without a gap; a topic's messages always
come through one source, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from mqtt_proxy.delivery.record_cache import Chunk
from mqtt_proxy.delivery.source import Source, send_run
from mqtt_proxy.history import HistoryRun
from mqtt_proxy.metrics import ProxyMetrics
from mqtt_proxy.mqtt.codec.encode import publish_head
from mqtt_proxy.mqtt.codec.packets import LEVEL_5, QOS_2
from mqtt_proxy.mqtt.session.deliveries import TOO_LARGE
from mqtt_proxy.mqtt.session.in_flight import RETAINED_QUEUE, DeliveryOrigin
from mqtt_proxy.mqtt.session.session import Session
from mqtt_proxy.retained import RetainedRun
from mqtt_proxy.tracing import ProxyTraces
from remoting.access.rules import READ_HISTORY, READ_LIVE
from remoting.protocol.records.properties import MessageProperties, expiry_of, from_pairs
from remoting.protocol.records.record import CLIENT_ID_KEY, FLAG_PROPERTIES, FLAG_RETAIN, RecordView
from runtime.clock import Clock
from runtime.logs import get_logger

PASSED = -1
"""An older source has sent it: pass over."""
WAIT = -2
"""An older source will send it: do not continue before it has."""


def decide(
    dispatch: Iterable[tuple[int, int]],
    source: Source,
    by_queue: Mapping[int, Source],
    offset: int,
    *,
    own: bool = False,
) -> int:
    """What `source` does with the record at its `offset`: send with the QoS answered, PASSED or WAIT.

    `own`: the client published it itself, so its subscriptions with No Local do not match [MQTT-3.8.3-3].
    """
    if own and source.grant.no_local:
        return PASSED
    qos = source.grant.qos
    older: Source | None = None
    older_offset = 0
    for queue_id, other_offset in dispatch:
        other = by_queue.get(queue_id)
        if other is None or other is source or (own and other.grant.no_local):
            continue
        if other.serial < source.serial:
            if other.cursor <= other_offset:
                return WAIT
            if older is None or other.serial < older.serial:
                older, older_offset = other, other_offset
        elif other.grant.qos > qos and other_offset >= other.start:
            qos = other.grant.qos
    if older is None:
        return qos
    source.leave_to(older, offset, older_offset)
    return PASSED


def gather(
    dispatch: Iterable[tuple[int, int]], source: Source, by_queue: Mapping[int, Source], *, own: bool = False
) -> tuple[list[int], bool]:
    """The Subscription Identifiers of all subscriptions that the one copy is sent for [MQTT-3.3.4-4], and whether any
    of them requests the retain flag as it was published.
    """
    identifiers = list(source.grant.identifiers)
    as_published = source.grant.retain_as_published
    for queue_id, offset in dispatch:
        other = by_queue.get(queue_id)
        if other is None or other is source or (own and other.grant.no_local) or offset < other.start:
            continue
        as_published = as_published or other.grant.retain_as_published
        identifiers += [identifier for identifier in other.grant.identifiers if identifier not in identifiers]
    return identifiers, as_published


class Removed:
    """The counts of one connection."""

    __slots__ = ("_counts", "_metrics")

    def __init__(self, metrics: ProxyMetrics) -> None:
        self._metrics = metrics
        self._counts: dict[str, int] | None = None  # most sessions never need one

    def count(self, reason: str, messages: int = 1) -> None:
        """Count messages that the session will never be given."""
        self._metrics.deliveries.skipped(reason).value += messages
        if messages:
            counts = self._counts = self._counts or {}
            counts[reason] = counts.get(reason, 0) + messages

    def take(self) -> list[tuple[str, int]]:
        """(reason, messages) since the last call, for SESSION_CLOSE."""
        counts, self._counts = self._counts, None
        return sorted(counts.items()) if counts else []


LOG = get_logger("proxy.outbound")

RETAINED = DeliveryOrigin(RETAINED_QUEUE)
"""The place of every retained delivery: acknowledging one moves no cursor."""

EXPIRED = "expired"
TOO_LARGE_FOR_CLIENT = "too_large_for_client"
NOT_AUTHORIZED = "not_authorized"
"""Reasons of `rocketmq_mqtt_messages_skipped_total`."""


def publisher_of(record: RecordView) -> bytes | None:
    """The client id of a message's publisher; None when it did not come from MQTT."""
    for key, value in record.properties():
        if key == CLIENT_ID_KEY:
            return value
    return None


def _nothing(_topic: bytes, _how: int) -> bool:
    return False


def _all_topics(_topic: bytes) -> bool:
    return True


class Outbound:
    """The sending half of one session."""

    __slots__ = (
        "_clock", "_deliveries", "_metrics", "_session", "_sources", "_traces", "budget_bytes",
        "may_be_given", "may_read", "removed",
    )  # fmt: skip

    def __init__(
        self,
        session: Session,
        metrics: ProxyMetrics,
        clock: Clock,
        sources: Sequence[Source],
        traces: ProxyTraces | None = None,
    ) -> None:
        """`sources` are the session's; they are read, never changed."""
        self._traces = traces
        self._session = session.state
        self._deliveries = session.deliveries
        self._metrics = metrics
        self._clock = clock
        self._sources = sources
        self.removed = Removed(metrics)
        """What the client does not get, by reason."""
        self.budget_bytes = 0
        """Payload bytes that may still be sent in this turn; the last message may exceed it."""
        self.may_be_given: Callable[[bytes], bool] = _all_topics
        """Whether a retained message of this topic may be given to the client."""
        self.may_read: Callable[[bytes, int], bool] = _nothing
        """Whether a message of this topic may be given to the client, asked for sources that are `judged`."""

    # -- one message ---------------------------------------------------------------------------------------------------

    def is_own(self, record: RecordView) -> bool:
        """Whether this client published it."""
        return publisher_of(record) == self._session.terms.client_id.encode()

    def properties_of(self, record: RecordView) -> tuple[MessageProperties | None, int | None]:
        """The message's properties, and the seconds until it expires (None: never; 0 or less: it has)."""
        pairs = record.properties()
        expiry_s = expiry_of(pairs)
        left_s = None
        if expiry_s is not None:
            left_s = expiry_s - max(0, self._clock.now_ms() - record.store_ms) // 1_000
        return from_pairs(pairs) if self._session.terms.level == LEVEL_5 else None, left_s

    def send(
        self,
        record: RecordView,
        topic: bytes,
        payload: bytes | memoryview,
        qos: int,
        retain: bool,
        token: object,
        subscription_ids: Sequence[int] = (),
    ) -> bool:
        """Send a message with its properties; False when it cannot be sent to this client any more."""
        properties, left_s = self.properties_of(record)
        if left_s is not None and left_s <= 0:
            self.removed.count(EXPIRED)
            return False
        sent = self._deliveries.deliver(
            topic, payload, qos, retain, False, token if qos else None, properties, subscription_ids, left_s
        )
        if sent == TOO_LARGE:
            self._too_large(topic, payload)
        elif self._traces is not None:
            self._traces.delivered(record, topic, self._session.terms.client_id, qos)
        return sent != TOO_LARGE

    def send_again(
        self,
        packet_id: int,
        record: RecordView | None,
        topic: bytes,
        payload: bytes | memoryview,
        qos: int,
        retain: bool,
        token: object,
        subscription_ids: Sequence[int] = (),
    ) -> bool:
        """Send a delivery in flight again; if its expiry has passed since it was begun, it is finished nevertheless."""
        properties, left_s = self.properties_of(record) if record is not None else (None, None)
        left_s = None if left_s is None else max(0, left_s)
        sent = self._deliveries.redeliver(
            packet_id, topic, payload, qos, retain, token, properties, subscription_ids, left_s
        )
        if sent == TOO_LARGE:
            self._too_large(topic, payload)
        return sent != TOO_LARGE

    def _too_large(self, topic: bytes, payload: bytes | memoryview) -> None:
        self.removed.count(TOO_LARGE_FOR_CLIENT)
        LOG.info(
            "message_too_large_for_client", client_id=self._session.terms.client_id,
            topic=topic.decode(errors="replace"), size_bytes=len(payload),
        )  # fmt: skip

    # -- a slice of a source -------------------------------------------------------------------------------------------

    def send_slice(self, source: Source, chunk: Chunk, index: int, portion: int, *, alone: bool) -> int:
        """Send up to `portion` messages at the source's cursor, which is at `index` of the chunk; returns how many were
        sent. `alone`: the session has no other source.
        """
        if not (alone and source.grant.is_plain and self._deliveries.is_plain):
            return self._send_merged(source, chunk, index, portion)
        sent, spent, special = send_run(self._session, source, chunk, portion, self.budget_bytes)
        self.budget_bytes -= spent
        if special:
            sent += self._send_plain(source, chunk, source.cursor - chunk.first, portion - sent)
        return sent

    def _send_plain(self, source: Source, chunk: Chunk, index: int, portion: int) -> int:
        """Send messages of which some are not plain, in a session whose only subscription needs no check for
        overlaps."""
        level = self._session.terms.level
        send = self._deliveries.deliver_prepared
        free = self._deliveries.window_free
        unacked = source.unacked
        qos_max = source.grant.qos
        offset = source.cursor
        first = offset
        budget = self.budget_bytes
        for topic, payload, flags, start in chunk.records[index : index + portion]:
            qos = flags & 3
            if qos > qos_max:
                qos = qos_max
            if budget <= 0 or (qos and free <= 0):
                break
            if topic and not (qos == QOS_2 and source.is_exact(offset)):
                size = len(payload)
                budget -= size
                token = (source, offset) if qos else None
                if flags & FLAG_PROPERTIES:
                    sent = self.send(RecordView(chunk.blob, start), topic, payload, qos, False, token)
                else:
                    sent = send(publish_head(topic, size, qos, False, False, level), payload, qos, token) != TOO_LARGE
                    if not sent:
                        self._too_large(topic, payload)
                if qos and sent:
                    free -= 1
                    unacked[offset] = None
            offset += 1
        source.cursor = offset
        self.budget_bytes = budget
        return offset - first

    def _send_merged(self, source: Source, chunk: Chunk, index: int, portion: int) -> int:
        """For sessions whose subscriptions may overlap or have options, and for clients with topic aliases."""
        by_queue = {one.queue_id: one for one in self._sources}
        decorated = not self._deliveries.is_plain or not all(one.grant.is_plain for one in by_queue.values())
        no_local = decorated and any(one.grant.no_local for one in by_queue.values())
        sent = 0
        for topic, payload, flags, start in chunk.records[index : index + portion]:
            if self.budget_bytes <= 0:
                break
            offset = source.cursor
            if (
                topic
                and source.grant.judged
                and not self.may_read(topic, READ_HISTORY if offset < source.live_from else READ_LIVE)
            ):
                self.removed.count(NOT_AUTHORIZED)
            elif topic:
                record = RecordView(chunk.blob, start)
                dispatch = record.dispatch() if offset >= source.live_from else []
                own = no_local and self.is_own(record)
                granted = decide(dispatch, source, by_queue, offset, own=own)
                qos = min(flags & 3, granted)
                if granted == WAIT or (qos > 0 and self._deliveries.window_free <= 0):
                    break
                if qos == QOS_2 and source.is_exact(offset):
                    own = False
                elif granted == PASSED:
                    self._metrics.deliveries.merged.value += not own
                else:
                    self.budget_bytes -= len(payload)
                    identifiers, as_published = (
                        gather(dispatch, source, by_queue, own=own) if decorated else ([], False)
                    )
                    retain = as_published and flags & FLAG_RETAIN != 0
                    token = (source, offset) if qos else None
                    if decorated or flags & FLAG_PROPERTIES:
                        done = self.send(record, topic, payload, qos, retain, token, identifiers)
                    else:
                        done = self._send_prepared(topic, payload, qos, token)
                    if qos and done:
                        source.unacked[offset] = None
                    sent += 1
            source.cursor = offset + 1
        return sent

    def _send_prepared(self, topic: bytes, payload: bytes | memoryview, qos: int, token: object) -> bool:
        head = publish_head(topic, len(payload), qos, False, False, self._session.terms.level)
        sent = self._deliveries.deliver_prepared(head, payload, qos, token) != TOO_LARGE
        if not sent:
            self._too_large(topic, payload)
        return sent

    def send_history(self, source: Source, run: HistoryRun, portion: int) -> int:
        """Send messages from before the source's queue; they go before its live ones."""
        grant, sent = source.grant, 0
        while run.ready and sent < portion and self.budget_bytes > 0:
            record = run.ready[0]
            qos = min(record.flags & 3, grant.qos)
            if qos and self._deliveries.window_free <= 0:
                break
            run.ready.popleft()
            topic = record.mqtt_topic
            assert topic is not None, "history matches MQTT topics"
            if grant.judged and not self.may_read(topic, READ_HISTORY):
                self.removed.count(NOT_AUTHORIZED)
            elif record.position not in run.unacked and not (grant.no_local and self.is_own(record)):
                self.budget_bytes -= record.body.nbytes
                begun = self.send(record, topic, record.body, qos, False, (run, record.position), grant.identifiers)
                if begun and qos:
                    run.unacked[record.position] = None
                sent += begun
        if not run.ready:
            run.fetch()
        return sent

    def send_retained(self, source: Source, run: RetainedRun, portion: int) -> int:
        """Send retained messages of a fresh subscription; they go before the source's live ones."""
        grant, sent = source.grant, 0
        while run.ready and sent < portion and self.budget_bytes > 0:
            position, topic, payload, published_qos, record = run.ready[0]
            qos = min(published_qos, grant.qos)
            if qos and self._deliveries.window_free <= 0:
                break
            run.ready.popleft()
            if not self.may_be_given(topic):
                self.removed.count(NOT_AUTHORIZED)
            elif not (grant.no_local and self.is_own(record)):
                self.budget_bytes -= len(payload)
                sent += self.send(record, topic, payload, qos, True, (RETAINED, position), grant.identifiers)
        self._metrics.deliveries.retained.value += sent
        if run.exhausted:
            source.retained = None
        elif not run.ready:
            run.fetch()
        return sent
