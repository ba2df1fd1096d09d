"""Administrative acts: requests whose outcome is recorded before it is answered.

`witnessed` wraps the handler of an act: whatever becomes of the request (an answer now or later, a refusal, a failure)
is reported once, with the reply if there is one; the reporter sends the reply. `described` says what is recorded: who
asked, with which role, from where, by which road, for what, and how it ended. Brokers and controllers keep the records,
each in its own way.

    road      the field `road` of the request, as our own tools and the console set it; else the language of the client
    target    the values of a few named fields; bodies are read for names alone, so that no record has a secret

Invariant: every act is reported once; a request that is not one-way gets its answer from the reporter, or from the
router where the request is for what is not offered. Loop rule: on the loop's thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from remoting.protocol.bodies.controller_body import NO_BROKER
from remoting.protocol.errors import LightMQError, NotOffered, Refused
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode, request_name
from remoting.protocol.frames.commands import Command
from remoting.server.authorizer import Authorizer
from remoting.transport.calls import failure_reply
from remoting.transport.contracts import CloseCallback, Handler, Peer

ROAD_FIELD = "road"
"""Field of a request that names the tool it was made with."""
DONE = "done"
TARGET_FIELDS = (
    "topic", "queueId", "consumerGroup", "group", "groupName", "srcGroup", "destGroup", "client", "clientId",
    "username", "subject", "resource", "brokerName", "brokerId", "brokerControllerIdsToClean", "brokerAddress",
    "clusterName", "namespace", "key", "timestamp", "offset", "recallHandle", "delayMs", "deliverMs", "end", "queue",
    "add", "remove",
)  # fmt: skip
"""Fields that say what an act is about; the value of a setting is none of them, it may be a secret."""
NAMED_BODIES = frozenset({Code.UPDATE_BROKER_CONFIG, Code.UPDATE_NAMESRV_CONFIG, Code.UPDATE_CONTROLLER_CONFIG})
"""Acts whose body is lines of `name=value`; the names are recorded."""
REFUSED_PER_MINUTE_MAX = 120
"""Refused acts that become records; more are only counted and logged."""
MINUTE_MS = 60_000
VALUE_CHARACTERS_MAX = 200
NAMES_MAX = 20
_ROAD = re.compile(r"[a-z][a-z0-9-]{0,31}")


class ActRecord(msgspec.Struct, omit_defaults=True):
    """One administrative act."""

    time_ms: int
    who: str
    role: str
    """The role that allowed it; empty for rights of other kinds, and without an access list."""
    address: str
    act: str
    target: str
    outcome: str
    """`done`, or `refused: ` and the reason."""
    road: str
    id: str = ""
    """Where it is in its server's list: a whole number that rises. A record in the log has its offset instead."""


Report = Callable[[Peer, Command, Command | None, str], None]
"""(peer, request, reply or None, outcome); sends the reply, if there is one, to the peer."""


class WitnessedPeer:
    """The peer of an act as its handler sees it: the answer goes to `answered` first."""

    def __init__(self, peer: Peer, command: Command, answered: Callable[[Command], None]) -> None:
        self.address = peer.address
        self.loopback = peer.loopback
        self.attributes = peer.attributes
        self._peer = peer
        self._opaque = command.opaque
        self._answered: Callable[[Command], None] | None = answered

    @property
    def writable(self) -> bool:
        """False while output above the limit waits at the peer."""
        return self._peer.writable

    def send(self, command: Command) -> None:
        """The first answer is reported; anything else goes to the peer."""
        answered = self._answered
        if answered is not None and command.is_response and command.opaque == self._opaque:
            self._answered = None
            answered(command)
        else:
            self._peer.send(command)

    def close(self, reason: str) -> None:
        """Close the peer's connection once its output is sent."""
        self._peer.close(reason)

    def on_close(self, callback: CloseCallback) -> None:
        """Call back when the peer's connection has ended."""
        self._peer.on_close(callback)

    def __getattr__(self, name: str) -> Any:
        """What only some peers have: counting refusals, the address at which they reached us."""
        return getattr(self._peer, name)


def witnessed(handler: Handler, report: Report) -> Handler:
    """The handler of an act, reported."""

    def handle(peer: Peer, command: Command) -> None:
        witness = WitnessedPeer(peer, command, lambda reply: report(peer, command, reply, outcome_of(reply)))
        try:
            reply = handler(witness, command)
        except NotOffered as error:  # the router notes and answers it
            report(peer, command, None, refused(error))
            raise
        except Exception as error:  # noqa: BLE001 - the answer is the one the router would give
            reply = failure_reply(peer, command, error)
            report(peer, command, None if command.is_oneway else reply, refused(error))
            return
        if reply is not None:
            report(peer, command, None if command.is_oneway else reply, outcome_of(reply))
        elif command.is_oneway:
            report(peer, command, None, DONE)

    return handle


def from_tool(command: Command) -> bool:
    """Whether a request names the tool it was made with."""
    return ROAD_FIELD in command.fields


def names_master(command: Command) -> bool:
    """Whether an operator asks for an election: a broker asks for itself."""
    fields = command.fields
    return fields.get("designateElect", "").lower() == "true" or fields.get("brokerId", "") in ("", str(NO_BROKER))


SOMETIMES = {
    Code.RECALL_MESSAGE: from_tool, Code.RESCHEDULE_MESSAGE: from_tool, Code.UPDATE_CONSUMER_OFFSET: from_tool,
    Code.CONTROLLER_ELECT_MASTER: names_master,
}  # fmt: skip
"""Requests that clients and brokers send for themselves, and which of them are acts."""


def watched(handlers: Mapping[int, Handler], acts: Iterable[int], report: Report) -> dict[int, Handler]:
    """The same handlers, those of `acts` reported, and of `SOMETIMES` the requests that are acts."""
    found = dict(handlers)
    for code in acts:
        if code in handlers:
            found[code] = witnessed(handlers[code], report)
    for code, is_act in SOMETIMES.items():
        if code in handlers:
            found[code] = _either(handlers[code], witnessed(handlers[code], report), is_act)
    return found


def _either(plain: Handler, act: Handler, is_act: Callable[[Command], bool]) -> Handler:
    def handle(peer: Peer, command: Command) -> Command | None:
        return (act if is_act(command) else plain)(peer, command)

    return handle


class RefusedActs:
    """Counts refused acts by minute: above a limit they leave no record, so that nobody fills a disk with them."""

    def __init__(self, per_minute_max: int) -> None:
        self._per_minute_max = per_minute_max
        self._minute = self._count = 0

    def too_many(self, record: ActRecord) -> bool:
        """Whether this act was refused and is above what one minute may record."""
        if record.outcome == DONE:
            return False
        minute = record.time_ms // MINUTE_MS
        if minute != self._minute:
            self._minute, self._count = minute, 0
        self._count += 1
        return self._count > self._per_minute_max


def outcome_of(reply: Command) -> str:
    """The outcome in a reply."""
    if reply.code == ResponseCode.SUCCESS:
        return DONE
    return f"refused: {reply.code} {reply.remark or ''}"[:VALUE_CHARACTERS_MAX].rstrip()


def refused(error: Exception) -> str:
    """The outcome of an act whose handler raised this."""
    if isinstance(error, Refused):
        return f"refused: {error.code} {error.remark}"[:VALUE_CHARACTERS_MAX]
    text = str(error) if isinstance(error, LightMQError) else type(error).__name__
    return f"failed: {text}"[:VALUE_CHARACTERS_MAX]


def described(authorizer: Authorizer, peer: Peer, command: Command, outcome: str, now_ms: int) -> ActRecord:
    """What is recorded of one act."""
    subject = authorizer.subject(peer, command)
    actor = authorizer.actor(peer, command)
    who, role, address = actor or (subject, authorizer.role(subject), authorizer.host(peer, command))
    road = command.fields.get(ROAD_FIELD, "")
    return ActRecord(
        time_ms=now_ms,
        who=who[:VALUE_CHARACTERS_MAX],
        role=role[:VALUE_CHARACTERS_MAX],
        address=address[:VALUE_CHARACTERS_MAX],
        act=request_name(command.code),
        target=target_of(command),
        outcome=outcome,
        road=road if _ROAD.fullmatch(road) else f"remoting-{command.language[:16].lower()}",
    )


def target_of(command: Command) -> str:
    """What an act is about, as `name=value` pairs."""
    found = [
        f"{name}={command.fields[name][:VALUE_CHARACTERS_MAX]}" for name in TARGET_FIELDS if command.fields.get(name)
    ]
    if command.code in NAMED_BODIES:
        lines = bytes(command.body).decode("utf-8", "replace").splitlines()
        changed = [line.partition("=")[0].strip()[:64] for line in lines if "=" in line]
        found.append("names=" + ",".join(changed[:NAMES_MAX]))
    return " ".join(found)
