"""What the shell offers for the names of topics, groups, clients, brokers and profiles: those the server knows now.

Called at every TAB, so each question has `ANSWER_S` and gives at most `NAMES_MAX` names. Invariant: whatever goes wrong
(no server, no right, a slow answer) offers nothing, and prints nothing. Names that a terminal would not show as they
are stay away.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

from cyclopts import Parameter

from remoting.protocol.errors import LightMQError

if TYPE_CHECKING:
    from cyclopts.completion import CompletionContext

    from lightmq.cli.connections import Broker

ANSWER_S = 0.7
"""Longest wait for one answer of a server."""
NAMES_MAX = 200
TARGET = {
    "--server": "server", "--access-key-file": "access_key_file", "--access-key": "access_key", "--tls": "tls",
    "--tls-ca": "tls_ca", "--tls-certificate": "tls_certificate", "--tls-key": "tls_key",
    "--tls-server-name": "tls_server_name",
}  # fmt: skip
"""Options that say where the server is -> fields of its target."""


def topics(context: CompletionContext) -> list[str]:
    """Offer what the brokers list, RocketMQ's topics and the parents of MQTT's."""
    from remoting.protocol.frames.codes import RequestCode

    def of(broker: Broker) -> Iterator[str]:
        return (row["topic"] for row in json.loads(_ask(broker, RequestCode.TOPIC_LIST))["topics"] if row["topic"])

    return _offered(context, of)


def groups(context: CompletionContext) -> list[str]:
    """Names of consumer groups that have committed an offset."""
    from remoting.protocol.frames.codes import RequestCode

    def of(broker: Broker) -> Iterator[str]:
        fields = {"contains": context.incomplete, "limit": str(NAMES_MAX)}
        return (row["name"] for row in json.loads(_ask(broker, RequestCode.GROUP_LIST, **fields))["groups"])

    return _offered(context, of)


def clients(context: CompletionContext) -> list[str]:
    """Ids of connected clients."""
    from remoting.protocol.frames.codes import RequestCode

    return _offered(
        context, lambda broker: _ids(broker, RequestCode.MQTT_CLIENTS, "clients", prefix=context.incomplete)
    )


def sessions(context: CompletionContext) -> list[str]:
    """Client ids of sessions."""
    from remoting.protocol.frames.codes import RequestCode

    return _offered(context, lambda broker: _ids(broker, RequestCode.SESSION_LIST, "sessions"))


def broker_groups(context: CompletionContext) -> list[str]:
    """Names of broker groups."""
    return _offered(context, lambda broker: [broker.name])


def _offered(context: CompletionContext, names: Callable[[Broker], Iterable[str]]) -> list[str]:
    """The names of every broker that begin with what is typed, in order."""
    try:
        with _brokers(context) as found:
            known = {name for broker in found for name in names(broker) if name.startswith(context.incomplete)}
    except (LightMQError, OSError, ValueError, KeyError, TypeError):
        return []
    return list(islice(sorted(name for name in known if name.isprintable()), NAMES_MAX))


@contextmanager
def _brokers(context: CompletionContext) -> Iterator[list[Broker]]:
    """Connections to the brokers of the options typed so far, the environment or the profile."""
    from lightmq.cli.connections import Security, ServerTarget, brokers

    values: dict[str, Any] = {}
    for option, name in TARGET.items():
        given = context.get(option)
        if given is not None and given.provided:
            values[name] = given.value
    place = {"server": values.pop("server")} if "server" in values else {}
    with brokers(ServerTarget(timeout=ANSWER_S, security=Security(**values), **place)) as found:
        yield found


def _ask(broker: Broker, code: int, **fields: str) -> bytes:
    from remoting.protocol.frames.commands import Command

    return broker.ask(Command(code, fields=fields)).body


def _ids(broker: Broker, code: int, member: str, **fields: str) -> Iterator[str]:
    answer = json.loads(_ask(broker, code, after="", limit=str(NAMES_MAX), **fields))
    return (row["client"] for row in answer[member])


TOPICS = Parameter(completer=topics)
GROUPS = Parameter(completer=groups)
CLIENTS = Parameter(completer=clients)
SESSIONS = Parameter(completer=sessions)
BROKER_GROUPS = Parameter(completer=broker_groups)
"""For the annotations of the arguments that take such names."""
