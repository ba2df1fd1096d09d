"""Topics, groups and settings of a server for the scenarios of RocketMQ's Java and Node.js gRPC clients."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from remoting.client.admin import topic_fields
from remoting.client.blocking import BlockingConnection, checked
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from tests.support.certificates import Identity

TOPICS = ("simple", "sql", "push", "fifo", "delayed", "transactions", "dead")
TYPES = {"priority": "PRIORITY", "lite": "LITE"}
"""Topics that take messages of one type."""
QUEUES = {"priority": 4}
"""A priority is a queue."""
GROUPS = (
    {"groupName": "fifo-pushed", "consumeMessageOrderly": True},
    {"groupName": "lite-pushed", "attributes": {"+lite.bind.topic": "lite"}},
    {"groupName": "dead-pushed", "retryMaxTimes": 1},
)
RULES = """user ops
role admin
user ann
topic readwrite simple/#
topic read $group/simple-readers
"""


def prepare(dial: Callable[[], BlockingConnection]) -> None:
    """Make a topic for each scenario, and the groups that are not made by themselves."""
    with dial() as connection:
        for name in (*TOPICS, *TYPES):
            attributes = {"message.type": TYPES[name]} if name in TYPES else None
            fields = topic_fields(name, QUEUES.get(name, 2), attributes=attributes)
            checked(connection.request(Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields=fields)))
        for group in GROUPS:
            body = json.dumps(group).encode()
            checked(connection.request(Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)))


def secured(identity: Identity, rules: Path) -> list[str]:
    """Return the options of a server with TLS and an access list: `ann` may use the scenario `simple`."""
    rules.write_text(RULES)
    options = {
        "grpc.tls_certificate": identity.certificate,
        "grpc.tls_key": identity.key,
        "broker.access_list": rules,
        "broker.access_keys": "ops:o,ann:a",
    }
    return ["--grpc-port", "0", *(word for name, value in options.items() for word in ("--set", f"{name}={value}"))]
