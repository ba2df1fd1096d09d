"""Small values of the gRPC service: names in namespaces, lite topics, times, durations, endpoints. Pure."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from grpc_proxy.mapping.statuses import CallRejected, Code
from grpc_proxy.stubs import definition
from remoting.protocol.records.topics import validate_topic_name

SEPARATOR = "%"
"""Between a namespace and a name, as RocketMQ's remoting clients write it."""
NANOS_PER_MS = 1_000_000
MS_PER_S = 1_000
KEPT_MAX, KEPT_CHARS_MAX = 4_096, 512
"""Names of topics that are remembered as checked: how many, and how long they are."""


def topic_of(resource: Any) -> str:
    """Return a topic's name as the broker knows it. CallRejected(ILLEGAL_TOPIC) without one that a topic can have."""
    name, space = resource.name, resource.resource_namespace
    if len(name) + len(space) <= KEPT_CHARS_MAX:
        return _topic(name, space)
    return _topic.__wrapped__(name, space)


@lru_cache(maxsize=KEPT_MAX)
def _topic(name: str, space: str) -> str:
    found = _named(name, space, Code.ILLEGAL_TOPIC, "the topic has no name")
    problem = validate_topic_name(found)
    if problem is not None:
        raise CallRejected(Code.ILLEGAL_TOPIC, problem)
    return found


def group_of(resource: Any) -> str:
    """Return a consumer group's name as the broker knows it. CallRejected(ILLEGAL_CONSUMER_GROUP) without one."""
    name, space = resource.name, resource.resource_namespace
    return _named(name, space, Code.ILLEGAL_CONSUMER_GROUP, "the consumer group has no name")


def _named(name: str, space: str, code: int, text: str) -> str:
    if not name.strip():
        raise CallRejected(code, text)
    return f"{space}{SEPARATOR}{name}" if space else name


def checked_lite_topic(parent: str, lite_topic: str, chars_max: int) -> str:
    """Return the name of a lite topic of `parent`. CallRejected(ILLEGAL_LITE_TOPIC) for one that cannot be stored."""
    problem = validate_topic_name(f"{parent}/{lite_topic}".encode())
    if not lite_topic.strip() or len(lite_topic) > chars_max:
        problem = f"a lite topic has 1 to {chars_max} characters"
    if problem is not None:
        raise CallRejected(Code.ILLEGAL_LITE_TOPIC, f"lite topic {lite_topic[:64]!r}: {problem}")
    return lite_topic


def resource(name: str, namespace: str) -> Any:
    """Return a name of the broker as a client of this namespace knows it."""
    short = name.removeprefix(f"{namespace}{SEPARATOR}") if namespace else name
    return definition.Resource(name=short, resource_namespace=namespace)


def timestamp(at_ms: int) -> Timestamp:
    """Return milliseconds since 1970 as a Timestamp."""
    return Timestamp(seconds=at_ms // MS_PER_S, nanos=at_ms % MS_PER_S * NANOS_PER_MS)


def duration(ms: int) -> Duration:
    """Return milliseconds as a Duration."""
    return Duration(seconds=ms // MS_PER_S, nanos=ms % MS_PER_S * NANOS_PER_MS)


def wait_ms_of(request: Any, wait_ms_max: int, left_ms: int | None, margin_ms: int) -> int:
    """Return how long a receive or pull waits for a message: as long as it asks for, but not beyond its deadline.

    `left_ms` is the time until the deadline, None without one; the answer needs `margin_ms` of it. CallRejected
    (ILLEGAL_POLLING_TIME) for a negative time, and for a wait that cannot be answered before the deadline.
    """
    wait_ms = wait_ms_max
    if request.HasField("long_polling_timeout"):
        wait_ms = min(wait_ms, ms_of(request.long_polling_timeout))
    if wait_ms < 0:
        raise CallRejected(Code.ILLEGAL_POLLING_TIME, f"the long polling timeout {wait_ms} ms is negative")
    if left_ms is None or wait_ms == 0:
        return wait_ms
    if left_ms <= margin_ms:
        text = f"the deadline in {left_ms} ms leaves no time to wait for a message"
        raise CallRejected(Code.ILLEGAL_POLLING_TIME, text)
    return min(wait_ms, left_ms - margin_ms)


def ms_of(value: Any) -> int:
    """Return a Timestamp or Duration in milliseconds, parts of one dropped."""
    return int(value.seconds) * MS_PER_S + int(value.nanos) // NANOS_PER_MS
