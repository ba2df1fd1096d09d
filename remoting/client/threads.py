"""Administration and one queue of messages for threads: the calls of the asyncio clients, each waiting for its result.

Invariant: the connection is kept up by a thread of its own and ends with `close`. Thread rule: `Admin` from any thread;
`Consumer` from any, one call after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from remoting.client.admin import TIME_MAX_MS, AsyncAdmin
from remoting.client.consumer import (
    PULL_COUNT_MAX,
    PULL_WAIT_MS,
    READ_BYTES_MAX,
    READ_COUNT_MAX,
    AsyncConsumer,
    PullResult,
)
from remoting.client.endpoint import BackgroundConnection, Closing, Endpoint
from remoting.client.tls import ClientTls
from remoting.protocol.bodies.route_body import PERM_READ, PERM_WRITE, ClusterInfo, TopicRoute
from remoting.protocol.records.stored_message import StoredMessage
from remoting.transport.signature import Signer


class Admin(Closing):
    """Administration for threads; the calls are those of `AsyncAdmin`, and wait."""

    def __init__(
        self,
        address: str = "",
        *,
        controllers: Sequence[str] = (),
        broker_name: str = "",
        signer: Signer | None = None,
        tls: ClientTls | None = None,
    ) -> None:
        """The broker is named as for a `Producer`."""
        endpoint = Endpoint(address, controllers, broker_name, signer, tls)
        self._background = BackgroundConnection(endpoint, name="lightmq-admin")
        self._admin = AsyncAdmin(self._background.uplink.connection)

    def cluster(self) -> ClusterInfo:
        """Every broker group the name server knows."""
        return self._background.run(self._admin.cluster())

    def topic_names(self) -> list[str]:
        """Names of all topics the name server knows."""
        return self._background.run(self._admin.topic_names())

    def route(self, topic: str) -> TopicRoute:
        """Where a topic's queues are."""
        return self._background.run(self._admin.route(topic))

    def topics(self) -> dict[str, Any]:
        """The broker's topics with their queues and counts, as the JSON object it answers."""
        return self._background.run(self._admin.topics())

    def status(self) -> dict[str, Any]:
        """The broker's own view of itself, as the JSON object it answers."""
        return self._background.run(self._admin.status())

    def create_topic(
        self,
        topic: str,
        queue_count: int,
        *,
        perm: int = PERM_READ | PERM_WRITE,
        attributes: Mapping[str, str | None] | None = None,
    ) -> None:
        """Create a topic on the broker, or change its queue count, permission and attributes."""
        self._background.run(self._admin.create_topic(topic, queue_count, perm=perm, attributes=attributes))

    def topic_config(self, topic: str) -> dict[str, Any]:
        """One topic's configuration, as the JSON object the broker answers; `Refused` (17) without it."""
        return self._background.run(self._admin.topic_config(topic))

    def query(
        self, topic: str, key: str, *, count: int = 32, begin_ms: int = 0, end_ms: int = TIME_MAX_MS
    ) -> list[StoredMessage]:
        """The newest messages of a topic with a key, between two store times."""
        return self._background.run(self._admin.query(topic, key, count=count, begin_ms=begin_ms, end_ms=end_ms))

    def close(self) -> None:
        """Close the connection."""
        self._background.close()


class Consumer(Closing):
    """One consumer group's view of one queue, for threads; the calls are those of `AsyncConsumer`, and wait."""

    def __init__(
        self,
        address: str = "",
        *,
        group: str,
        topic: str,
        queue: int,
        controllers: Sequence[str] = (),
        broker_name: str = "",
        signer: Signer | None = None,
        tls: ClientTls | None = None,
    ) -> None:
        """The broker is named as for a `Producer`."""
        endpoint = Endpoint(address, controllers, broker_name, signer, tls)
        self._background = BackgroundConnection(endpoint, name="lightmq-consumer")
        self._consumer = AsyncConsumer(self._background.uplink.connection, group, topic, queue)

    def pull(
        self, offset: int, count_max: int = PULL_COUNT_MAX, wait_ms: int = PULL_WAIT_MS, tags: str = "*"
    ) -> PullResult:
        """Read from `offset`, waiting up to `wait_ms` at the end; `Refused` when topic or queue do not exist."""
        return self._background.run(self._consumer.pull(offset, count_max, wait_ms, tags))

    def read(self, offset: int, count_max: int = READ_COUNT_MAX, bytes_max: int = READ_BYTES_MAX) -> PullResult:
        """Read from `offset` without waiting; batches are unpacked here."""
        return self._background.run(self._consumer.read(offset, count_max, bytes_max))

    def committed(self) -> int | None:
        """The group's offset in the queue, None when it has none."""
        return self._background.run(self._consumer.committed())

    def commit(self, offset: int) -> None:
        """Store the group's offset: the next message it wants."""
        self._background.run(self._consumer.commit(offset))

    def max_offset(self) -> int:
        """Offset of the next message to come."""
        return self._background.run(self._consumer.max_offset())

    def min_offset(self) -> int:
        """Offset of the oldest message that is still there."""
        return self._background.run(self._consumer.min_offset())

    def offset_at(self, timestamp_ms: int) -> int:
        """Offset of the first message stored at or after a time (milliseconds since 1970)."""
        return self._background.run(self._consumer.offset_at(timestamp_ms))

    def close(self) -> None:
        """Close the connection."""
        self._background.close()
