"""What request handlers begin with: fields and JSON bodies, confirmed answers, and the parts every feature is given.

Header fields and JSON bodies of RocketMQ's requests are read as leniently as its real clients need. Values arrive as
text (the header codec turns numbers and booleans into text); the C++ client writes booleans as "0" and "1". A field
that is missing or not a number is Refused with its name. What an acting replica kept for a master comes as a list of
items (`merged_items`).

`ConfirmedAnswers` sends an answer when what it shows or acknowledges is confirmed, or the refusal of a store that
failed first. `RequestTools` is what every feature is given, `Feature` what it offers in turn, `BrokerIdentity` the
address of this broker for its clients, and when it started.

Invariants: nothing is sent before the confirm position has passed the position an answer names; message ids made here
are unique per start of the process. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from broker.store.errors import CorruptLog, GivenUp, QueueIdsUsedUp, StoreError, StoreFull
from remoting.protocol.errors import Refused, RemoteViolation
from remoting.protocol.frames import fastjson
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import Peer

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from broker.metrics import BrokerMetrics
    from broker.store.log_store import LogStore
    from remoting.server.authorizer import Authorizer
    from remoting.transport.contracts import Handler
    from runtime.clock import Clock


TRUE = frozenset({"1", "true", "True", "TRUE"})
NUMBERS_END = 2**63
"""Numbers of requests are signed and have 64 bits, as Java's."""
SHOWN_CHARACTERS_MAX = 40
"""Most characters of a wrong value in a remark."""


def text(fields: Mapping[str, str], name: str) -> str:
    """A required field."""
    value = fields.get(name)
    if value is None:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"the field {name} is missing")
    return value


def number(fields: Mapping[str, str], name: str, default: int | None = None) -> int:
    """A number of 64 bits; `default` when the field is missing or empty, Refused when there is no default, or for any
    other value: one that does not fit would fail only where it is written, with the work of other clients."""
    value = fields.get(name)
    if value is None or value == "":
        if default is None:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"the field {name} is missing")
        return default
    try:
        found = int(value)
    except ValueError:
        remark = f"the field {name} is not a number: {value[:SHOWN_CHARACTERS_MAX]!r}"
        raise Refused(ResponseCode.INVALID_PARAMETER, remark) from None
    if not -NUMBERS_END <= found < NUMBERS_END:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"the field {name} is not a number of 64 bits")
    return found


def limit_of(command: Command, most: int) -> int:
    """How many lines a page is to have: the field `limit`, from 1 to `most`; `most` when it is missing."""
    limit = number(command.fields, "limit", most)
    if limit < 1:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"limit {limit} is no number from 1 on")
    return min(limit, most)


def flag(fields: Mapping[str, str], name: str, *, default: bool = False) -> bool:
    """A boolean in any of the forms clients use."""
    value = fields.get(name)
    return default if value is None else value in TRUE


def json_body(command: Command) -> dict[str, Any]:
    """The request's body as a JSON object, standard or as old Java clients write it; Refused when it is none."""
    try:
        body = fastjson.loads(command.body)
    except RemoteViolation as error:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise Refused(ResponseCode.INVALID_PARAMETER, "the body is not a JSON object")
    return body


MERGED_MAX = 1_000
"""Items in one request of what was kept while a replica stood in for the master; more are refused."""


def merged_items(body: bytes, item: Any) -> list[Any]:
    """What an acting replica kept, as such a request brings it: a JSON list of items of this type.

    Raises:
        RemoteViolation: it is none.
        Refused: it is too long.
    """
    try:
        items = msgspec.json.decode(body, type=list[item])
    except msgspec.MsgspecError as error:
        raise RemoteViolation(f"what was kept for the master cannot be read: {error}") from error
    if len(items) > MERGED_MAX:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"{len(items)} items in one request, {MERGED_MAX} may be")
    return items


def refusal_of(metrics: BrokerMetrics, error: Exception) -> Refused:
    """The refusal for an error of the store, counted by reason."""
    if isinstance(error, StoreFull):
        metrics.refused.child("disk_full").value += 1
        return Refused(
            ResponseCode.SERVICE_NOT_AVAILABLE,
            f"the disk of this broker is full, nothing was stored: {error}",
        )
    if isinstance(error, QueueIdsUsedUp):
        metrics.refused.child("queue_ids").value += 1
        return Refused(ResponseCode.FLOW_CONTROL, str(error))
    if isinstance(error, GivenUp):
        metrics.refused.child("given_up").value += 1
        return Refused(ResponseCode.SERVICE_NOT_AVAILABLE, str(error), error.fields)
    if isinstance(error, CorruptLog):
        metrics.refused.child("damaged").value += 1
        return Refused(ResponseCode.SYSTEM_ERROR, str(error))
    if isinstance(error, StoreError):
        metrics.refused.child("log_failed").value += 1
        return Refused(ResponseCode.SERVICE_NOT_AVAILABLE, f"the broker cannot write its log: {error}")
    metrics.refused.child("message").value += 1
    return Refused(ResponseCode.MESSAGE_ILLEGAL, str(error))


class ConfirmedAnswers:
    """Sends replies when the log position they depend on is confirmed."""

    def __init__(
        self,
        store: LogStore,
        metrics: BrokerMetrics,
        when_published: Callable[[Collection[str], Callable[[], None]], None],
    ) -> None:
        """`when_published(topics, then)` calls back once the controllers within reach have the topics' routes."""
        self._store = store
        self._metrics = metrics
        self._when_published = when_published

    def reply_at(self, position: int, peer: Peer, reply: Command) -> None:
        """Send a reply once everything below `position` is confirmed."""
        self.when_confirmed(position, peer, reply, lambda: peer.send(reply))

    def reply_when_found(self, position: int, names: Collection[str], peer: Peer, reply: Command) -> None:
        """As `reply_at`, and not before the controllers within reach have the routes of these topics."""
        send = partial(peer.send, reply)
        self.when_confirmed(position, peer, reply, partial(self._when_published, names, send))

    def when_confirmed(self, position: int, peer: Peer, reply: Command, then: Callable[[], None]) -> None:
        """Call `then` once everything below `position` is confirmed; if the store fails first, send its refusal."""

        def confirmed(error: Exception | None) -> None:
            if error is None:
                then()
                return
            refused = refusal_of(self._metrics, error)
            reply.code, reply.remark, reply.body = refused.code, refused.remark, b""
            reply.fields = dict(refused.fields)
            peer.send(reply)

        self._store.when_confirmed(position, confirmed)


class BrokerIdentity:
    """The address of one running broker, and the ids it makes."""

    def __init__(self, *, epoch: int, started_ms: int, started_position: int) -> None:
        self.host = "127.0.0.1"
        self.port = 0
        self.readers_address: Callable[[], str | None] = lambda: None
        """`host:port` at which reader processes answer RANGE_PULL right now; None where there are none."""
        self.is_replica_read: Callable[[int], bool] = lambda _broker_id: False
        """Whether consumers may be sent to the replica of this id right now."""
        self.started_ms = started_ms
        self.started_position = started_position
        self._epoch = epoch
        self._ids = 0

    @property
    def address(self) -> str:
        """`host:port` at which clients reach this broker."""
        return f"{self.host}:{self.port}"

    def unique_id(self) -> str:
        """A message id for a client that sent none: unique per process start, 32 hex digits."""
        self._ids += 1
        return f"{self._epoch & 0xFFFFFFFF:08X}{self.started_ms & 0xFFFFFFFFFFFF:012X}{self._ids:012X}"


class CurrentRequest:
    """The request whose handler runs now: what it makes by use counts for who asks."""

    __slots__ = ("asked",)

    def __init__(self) -> None:
        self.asked: tuple[Peer, Command] | None = None


@dataclass(frozen=True, slots=True)
class RequestTools:
    """Given to each feature; parts of other features that it needs are further arguments."""

    config: BrokerConfig
    store: LogStore
    clock: Clock
    metrics: BrokerMetrics
    log: Any
    authorizer: Authorizer
    answers: ConfirmedAnswers
    identity: BrokerIdentity
    current: CurrentRequest = field(default_factory=CurrentRequest)

    def asking_user(self) -> str:
        """Whose request is being handled; empty where the broker does something by itself."""
        asked = self.current.asked
        return "" if asked is None else self.authorizer.subject(*asked)

    @property
    def is_sure(self) -> bool:
        """Whether all that the log had at the start is confirmed here, so that no reader was ever shown more.

        A new master is not sure until its replicas have told it what they have.
        """
        return self.store.confirm_position >= self.identity.started_position


class Feature:
    """One feature of the broker; each overrides what it offers. Loop thread only."""

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler; no code is in two features."""
        return {}

    def start(self) -> None:
        """Begin to work, before clients can reach the broker: continue interrupted work, start timers."""

    def stop(self) -> None:
        """End timers; nothing is written afterwards. Does nothing without a `start` before it."""

    def configure(self) -> None:
        """Take over the options that may have changed at run time (`live` in config.py)."""

    def maintain(self, now_ms: int) -> dict[str, int]:
        """Expire what is no longer used, every `maintain_interval_ms`; returns how much was dropped, by reason.

        Raises:
            StoreError: the log cannot be written; the next call tries again.
        """
        del now_ms
        return {}

    def status(self) -> dict[str, int]:
        """This feature's numbers in CLUSTER_STATUS."""
        return {}
