"""``lightmq tail``: print the last messages of a topic, filter or parent topic from the log itself, and follow it.

Reads through remoting, beside every subscriber, and moves no offset. An exact MQTT topic is one light queue; a filter
is read from the queues of the parent topics it covers and matched here. Messages of one broker come in the order of its
log. Invariant: a message is printed once.
"""

from __future__ import annotations

import json
import sys
from typing import Annotated

from cyclopts import Parameter

from lightmq.cli.connections.link import Broker, ServerTarget, brokers
from lightmq.cli.messages.queue_reader import LogMessage, QueueReader, Selection
from lightmq.cli.messages.subscribe import payload_fields
from lightmq.cli.outcome import CommandFailed
from remoting.protocol.records.record import RecordView

WAIT_MS = 1_000
HERE = ServerTarget()


def tail(
    topic_filter: Annotated[
        str, Parameter(name=["--filter", "-t"], help="MQTT topic or filter; with --topic a RocketMQ topic.")
    ],
    *,
    last: Annotated[int, Parameter(name=["--last", "-n"], help="Begin with so many of the newest messages.")] = 10,
    offset: Annotated[int | None, Parameter(name=["--offset"], help="Begin at this queue offset instead.")] = None,
    follow: Annotated[bool, Parameter(name=["--follow", "-f"], negative=(), help="Stay and print new ones.")] = False,
    count: Annotated[int, Parameter(name=["--count"], help="Leave after so many messages; 0: no limit.")] = 0,
    topic: Annotated[bool, Parameter(name=["--topic"], negative=(), help="The name is a RocketMQ topic.")] = False,
    json_output: Annotated[bool, Parameter(name=["--json"], negative=(), help="One JSON object per message.")] = False,
    target: ServerTarget = HERE,
) -> None:
    """Print messages from the log."""
    from lightmq.cli.checks import check_filter

    if not topic:
        check_filter(topic_filter)
    if last < 0 or count < 0 or (offset is not None and offset < 0):
        raise CommandFailed("--last, --count and --offset must not be negative")
    selection = Selection(topic_filter, is_parent=topic)
    printer = Printer(limit=count, json_output=json_output)
    with brokers(target) as found:
        readers = [QueueReader(broker, selection) for broker in found]
        if topic and not any(reader.exists() for reader in readers):
            raise CommandFailed(f"there is no topic {topic_filter}; see: lightmq topics")
        first = [reader.from_offset(offset) if offset is not None else reader.newest(last) for reader in readers]
        batches = [(broker, message) for broker, batch in zip(found, first, strict=True) for message in batch]
        if offset is None:
            batches.sort(key=lambda item: item[1].record.store_ms)
            batches = batches[len(batches) - min(last, len(batches)) :]
        printer.put(batches)
        if not batches:
            what = "is in" if topic else "matches"
            sys.stderr.write(f"no message {what} {topic_filter}{' yet' if follow else ''}\n")
        while follow and not printer.full:
            for broker, reader in zip(found, readers, strict=True):
                fresh = reader.fresh(WAIT_MS // len(found))
                printer.put([(broker, message) for message in fresh])


class Printer:
    """Writes messages until its limit is reached."""

    def __init__(self, *, limit: int, json_output: bool) -> None:
        self._limit = limit
        self._json = json_output
        self._printed = 0

    @property
    def full(self) -> bool:
        """Whether nothing more is to be printed."""
        return bool(self._limit) and self._printed >= self._limit

    def put(self, messages: list[tuple[Broker, LogMessage]]) -> None:
        """Print what the limit still allows, and let the reader of our output see it."""
        for broker, message in messages:
            if self.full:
                break
            sys.stdout.buffer.write(render(broker.name, message, json_output=self._json))
            self._printed += 1
        sys.stdout.buffer.flush()


def render(broker: str, message: LogMessage, *, json_output: bool) -> bytes:
    """One line for one message."""
    record = message.record
    payload = bytes(record.body)
    name = shown_topic(record)
    if not json_output:
        return b"%d %s %s\n" % (message.offset, name.encode(), payload)
    fields = {
        "broker": broker,
        "topic": name,
        "queue": message.queue_id,
        "offset": message.offset,
        "position": record.position,
        "born_ms": record.born_ms,
        "stored_ms": record.store_ms,
    }
    return (json.dumps({**fields, **payload_fields(payload)}, ensure_ascii=False) + "\n").encode()


def shown_topic(record: RecordView) -> str:
    """The MQTT topic, or the RocketMQ topic of a message that did not come over MQTT."""
    return (record.mqtt_topic or record.topic).decode(errors="replace")
