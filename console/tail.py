"""The messages of a filter as they are stored: some from before, then what comes.

Queues are looked at every `PAUSE_S`, and less often when that takes long, because a filter over many topics is dear;
from each queue that has grown, the records that pass the filter are read in the viewer's name. An exact topic is one
light queue. When a queue has grown by more than `COUNT_MAX` since the last look, the rest is skipped and counted.
Invariants: a message is shown once, in the order of its queue; the place in a queue never goes back.
Loop rule: on the loop's thread; one task uses a tail.
"""

from __future__ import annotations

import asyncio
import base64
from typing import Any

from console.cluster import BrokerGroupsView
from console.viewers import Viewer
from remoting import clock
from remoting.protocol.bodies.pull_body import (
    STATUS_NO_SUCH_QUEUE,
    VIEW,
    QueueBoundsReply,
    QueueBoundsRequest,
    RowFilter,
    decode_bounds_reply,
    decode_filtered_reply,
    encode_bounds_request,
    encode_filtered_pull,
    encode_row_filter,
)
from remoting.protocol.errors import LightMQError
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.records.properties import from_pairs
from remoting.protocol.records.record import FLAG_QOS_MASK, FLAG_RETAIN, RecordView, check_record, iter_records

PAUSE_S = 0.25
PATIENCE = 10
"""A look that takes long is made so many times its length later again."""
COUNT_MAX = 5_000
"""Records of one queue examined after one look."""
WINDOW_MIN = 256
"""Records examined per queue in the first step back; each further step is four times as long."""
WINDOW_MAX = 16_384
PULL_BYTES = 524_288
PAYLOAD_BYTES_MAX = 65_536
"""Of a longer payload only the beginning is shown."""


class FilterTail:
    """One filter on all brokers."""

    def __init__(self, cluster: BrokerGroupsView, viewer: Viewer, topic_filter: str) -> None:
        self._cluster = cluster
        self._viewer = viewer
        self._filter = topic_filter
        self._row_filter = encode_row_filter(RowFilter(mqtt=(topic_filter,)))
        self._next: dict[tuple[str, int], int] = {}
        self._pause_s = PAUSE_S
        self._skipped = 0

    async def begin(self, count: int) -> list[tuple[str, RecordView]]:
        """Return the last `count` messages, oldest first; `fresh` goes on behind them. Raises LightMQError."""
        found: list[tuple[str, RecordView]] = []
        refusal: LightMQError | None = None
        brokers = list(await self._cluster.masters())
        for broker in brokers:
            try:
                for queue_id, low, end in await self._bounds(broker):
                    self._next[broker, queue_id] = end
                    found += [(broker, one) for one in await self._newest(broker, queue_id, low, end, count)]
            except LightMQError as error:
                refusal = error
        if refusal is not None and len(brokers) == 1:
            raise refusal
        found.sort(key=lambda item: (item[1].store_ms, item[1].position))
        return found[-count:] if count else []

    async def fresh(self) -> list[tuple[str, RecordView]]:
        """Return what has come since, after a pause; raises LightMQError when no broker can be read."""
        await asyncio.sleep(self._pause_s)
        begun_s = clock.monotonic_s()
        found: list[tuple[str, RecordView]] = []
        for broker in await self._cluster.masters():
            bounds = await self._bounds(broker)
            self._pause_s = max(PAUSE_S, PATIENCE * (clock.monotonic_s() - begun_s))
            for queue_id, low, end in bounds:
                start = self._next.get((broker, queue_id), low)
                self._next[broker, queue_id] = max(start, end)
                if start < end:
                    begin = max(start, low, end - COUNT_MAX)
                    self._skipped += begin - max(start, low)
                    found += [(broker, one) for one in await self._read(broker, queue_id, begin, end)]
        found.sort(key=lambda item: (item[1].store_ms, item[1].position))
        return found

    def skipped(self) -> int:
        """Return how many records were not looked at since the last call."""
        skipped, self._skipped = self._skipped, 0
        return skipped

    async def _bounds(self, broker: str) -> list[tuple[int, int, int]]:
        body = encode_bounds_request(QueueBoundsRequest(topics=[], filter=self._filter, known=None, wait_ms=0))
        answer = await self._cluster.ask(broker, self._viewer, Code.QUEUE_BOUNDS, body=body)
        reply: QueueBoundsReply = decode_bounds_reply(answer.body)
        if reply.light is not None:
            return [(reply.light.id, reply.light.min, reply.light.max)]
        return [(queue.id, queue.min, queue.max) for queue in reply.queues]

    async def _newest(self, broker: str, queue_id: int, low: int, end: int, count: int) -> list[RecordView]:
        found: list[RecordView] = []
        upper, window = end, max(WINDOW_MIN, count)
        while upper > low and len(found) < count and window <= WINDOW_MAX:
            start = max(low, upper - window)
            found = [*await self._read(broker, queue_id, start, upper), *found]
            upper, window = start, window * 4
        return found[-count:] if count else []

    async def _read(self, broker: str, queue_id: int, start: int, end: int) -> list[RecordView]:
        found: list[RecordView] = []
        while start < end:
            body = encode_filtered_pull(queue_id, start, end, PULL_BYTES, self._row_filter)
            answer = await self._cluster.ask(broker, self._viewer, Code.FILTERED_PULL, VIEW, body)
            pulled = decode_filtered_reply(answer.body)
            for view in iter_records(pulled.blob):
                check_record(view.raw, 0, None)
                found.append(view)
            if pulled.status == STATUS_NO_SUCH_QUEUE or pulled.next_offset <= start:
                break
            start = pulled.next_offset
        return found


def shown(broker: str, record: RecordView) -> dict[str, Any]:
    """Return a message as the API shows it; a payload that is no text is in base64.

    `offset` is its place in the queue of its parent topic, the first that it was written to.
    """
    queue_id, offset = record.dispatch()[0]
    payload = bytes(record.body[:PAYLOAD_BYTES_MAX])
    size = len(record.body)
    body: dict[str, Any] = {"payload_bytes": size, "truncated": size > len(payload)}
    try:
        body |= {"payload": payload.decode(), "encoding": "text"}
    except UnicodeDecodeError:
        body |= {"payload": base64.b64encode(payload).decode(), "encoding": "base64"}
    topic = record.mqtt_topic
    return {
        "topic": (record.topic if topic is None else topic).decode(errors="replace"),
        **body,
        "qos": record.flags & FLAG_QOS_MASK,
        "retain": bool(record.flags & FLAG_RETAIN),
        "time_ms": record.store_ms,
        "born_ms": record.born_ms,
        "queue_id": queue_id,
        "offset": offset,
        "position": record.position,
        "broker": broker,
        "message_id": message_id(broker, record.position),
        "properties": _properties(record),
    }


def message_id(broker: str, position: int) -> str:
    """Return the id of a message in this API: the broker group, and the place in its log."""
    return f"{broker}:{position}"


def _properties(record: RecordView) -> dict[str, Any]:
    """Return the properties of a message that its receivers get."""
    found = from_pairs(record.properties())
    if found is None:
        return {}
    texts = {
        "content_type": found.content_type, "response_topic": found.response_topic,
        "correlation_data": found.correlation_data,
    }  # fmt: skip
    shown_texts: dict[str, Any] = {
        name: value.decode(errors="replace") for name, value in texts.items() if value is not None
    }
    numbers = {"expiry_s": found.expiry_s, "payload_format": found.payload_format}
    shown_texts |= {name: value for name, value in numbers.items() if value is not None}
    if found.user:
        shown_texts["user"] = [
            [key.decode(errors="replace"), value.decode(errors="replace")] for key, value in found.user
        ]
    return shown_texts
