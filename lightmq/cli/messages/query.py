"""``lightmq query``: the newest messages of a topic that have a key, from every broker, by the brokers' key indexes.

A key is what the sender put into KEYS, or with ``--unique`` the id it gave the message. Invariant: the newest message
comes first, whichever broker has it; nothing found is exit status 1.
"""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

from cyclopts import Parameter

from lightmq.cli.connections.link import ServerTarget, brokers
from lightmq.cli.messages.subscribe import payload_fields
from lightmq.cli.outcome import CommandFailed
from remoting.client.admin import TIME_MAX_MS, found_messages, query_fields
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.stored_message import StoredMessage, offset_message_id

HERE = ServerTarget()


def query(
    topic: Annotated[str, Parameter(name=["--topic", "-t"], help="RocketMQ topic; of MQTT messages the parent topic.")],
    key: Annotated[str, Parameter(name=["--key", "-k"], help="One of the message's keys.")],
    *,
    unique: Annotated[bool, Parameter(negative=(), help="The key is the unique id of a message.")] = False,
    count: Annotated[int, Parameter(name=["--count", "-n"], help="At most so many, the newest (a broker: 64).")] = 32,
    begin: Annotated[int, Parameter(help="Stored at or after this time, in ms since 1970.", show_default=False)] = 0,
    end: Annotated[
        int, Parameter(help="Stored at or before this time, in ms since 1970.", show_default=False)
    ] = TIME_MAX_MS,
    json_output: Annotated[bool, Parameter(name=["--json"], negative=(), help="One JSON object per message.")] = False,
    target: ServerTarget = HERE,
) -> None:
    """Look messages up by topic and key."""
    if count < 1 or begin > end:
        raise CommandFailed("--count must be at least 1, and --begin not behind --end")
    fields = query_fields(topic, key, count, begin_ms=begin, end_ms=end, unique=unique)
    found: list[tuple[str, StoredMessage]] = []
    with brokers(target) as asked:
        for broker in asked:
            answer = broker.connection.request(Command(RequestCode.QUERY_MESSAGE, fields=fields))
            found += [(broker.name, message) for message in found_messages(answer)]
    found.sort(key=lambda item: item[1].store_ms, reverse=True)
    for broker_name, message in found[:count]:
        sys.stdout.buffer.write(render(broker_name, message, json_output=json_output))
    sys.stdout.buffer.flush()
    if not found:
        raise CommandFailed(f"topic {topic} has no message with the key {key} in that time")


def render(broker: str, message: StoredMessage, *, json_output: bool) -> bytes:
    """One line for one message."""
    if not json_output:
        return b"%d-%d %s %s\n" % (message.queue_id, message.queue_offset, b" ".join(message.keys), message.body)
    fields: dict[str, Any] = {
        "broker": broker,
        "topic": message.topic.decode(errors="replace"),
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "position": message.position,
        "id": offset_message_id(message.store_host, message.position),
        "keys": [key.decode(errors="replace") for key in message.keys],
        "born_ms": message.born_ms,
        "stored_ms": message.store_ms,
        "properties": {
            name.decode(errors="replace"): value.decode(errors="replace") for name, value in message.properties
        },
    }
    return (json.dumps({**fields, **payload_fields(message.body)}, ensure_ascii=False) + "\n").encode()
