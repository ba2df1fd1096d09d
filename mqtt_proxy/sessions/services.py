"""What all clients of the proxy share: created once by the composition root, passed to each client.

Requests about sessions (`SessionCalls`) are sent at once, their answers follow in their own form. Those about one
client id are executed in the order in which they were made, and a SUBSCRIBE after what clients of this proxy published
before, unless that waits for the disk.

One live connection per client id (`Owners`): here by a table, across proxies by the broker's epochs. A CONNECT takes
its client id: an earlier connection of this proxy ends at once (its SESSION_CLOSE is sent before the new SESSION_OPEN,
so the new one resumes exactly where the old one stood). When the client reconnects through another proxy, the broker
raises the session's epoch and sends SESSION_FENCED; our connection ends then. In both cases the old connection's will
is published, as after any close without DISCONNECT [MQTT-3.1.4-2]. A client that disconnects while the broker is away
is remembered until the broker is back: its will must not be published.
Invariant: a client id names at most one owner here; `Services` only keeps track of tasks. Loop rule: on the loop's
thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from mqtt_proxy.access.auth import AccessControl
from mqtt_proxy.config import ProxyConfig
from mqtt_proxy.delivery.delivery import Delivery, DeliveryTools
from mqtt_proxy.history_steps import HistorySteps
from mqtt_proxy.link import Link, LinkDownError
from mqtt_proxy.listening.connection import ClientConnection
from mqtt_proxy.metrics import ProxyMetrics
from mqtt_proxy.publishing.inbound import PublishingParts
from mqtt_proxy.publishing.publisher import Publisher
from mqtt_proxy.quotas import Quotas
from mqtt_proxy.sessions.openings import Openings
from mqtt_proxy.sessions.qos2 import Qos2Flows
from mqtt_proxy.subscriptions import SubscriptionParts
from mqtt_proxy.sys_topics import SysTree
from remoting.protocol.bodies.session_body import (
    SessionClose,
    SessionFenced,
    SessionOpen,
    SessionOpened,
    Subscribed,
    SubscribeRequest,
    decode,
    encode,
)
from remoting.protocol.errors import LightMQError, Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import REQUEST_TIMEOUT_MS
from remoting.transport.turn import soon
from runtime.clock import Clock
from runtime.logs import get_logger

if TYPE_CHECKING:
    import msgspec

    from mqtt_proxy.link import Link
    from mqtt_proxy.publishing.publisher import Publisher

    S = TypeVar("S", bound=msgspec.Struct)


CLOSED_LATER_MAX = 10_000
"""Clients that left while the broker was away, still to be reported; above it the wills of the first are published."""
REVISED_PER_TURN_MAX = 200
"""Connections whose subscriptions are checked again in one loop turn after a change of the rules, some 10 ms of
work."""


class Owner(Protocol):
    """A connection that owns a session."""

    user: str | None
    since_ms: int

    @property
    def parts(self) -> tuple[ClientConnection, Delivery | None]:
        """Its connection, and what is delivered to it once the session is open."""

    def evict(self, reason: str, *, fenced: bool) -> None:
        """End now; `fenced` when the session already belongs to another connection and must not be reported on."""

    def fence(self, epoch: int, *, hand_over: bool = False) -> None:
        """The broker reports that the session of this epoch has another owner now; newer epochs are not affected.

        `hand_over`: it will have one as soon as this one has reported how far the client has come.
        """

    def rules_changed(self) -> None:
        """The rules have changed: drop cached permissions."""

    def revise(self) -> None:
        """Give up subscriptions that may not be read any more."""

    def reopen(self) -> None:
        """The broker was lost and is back: take the session again, or close it if the client has left meanwhile."""


class Owners:
    """Client id -> its connection."""

    def __init__(self, link: Link, metrics: ProxyMetrics, taken_over: Callable[[str], None] = lambda _id: None) -> None:
        """`taken_over` is called with each client id whose connection loses its session to another one."""
        self._taken_over = taken_over
        self._owners: dict[str, Owner] = {}
        self._metrics = metrics
        self._log = get_logger("proxy.ownership")
        self._was_up = False
        self._unrevised: deque[Owner] = deque()
        self._left: dict[Owner, None] = {}
        link.on_push(RequestCode.SESSION_FENCED, self._fenced)
        link.on_up(self._reopen)

    def __len__(self) -> int:
        return len(self._owners)

    def __iter__(self) -> Iterator[Owner]:
        return iter(list(self._owners.values()))

    def ids(self) -> list[str]:
        """The client ids of the connections, in no order."""
        return list(self._owners)

    def get(self, client_id: str) -> Owner | None:
        """The connection of a client id."""
        return self._owners.get(client_id)

    def foreign(self, client_id: str, user: str | None) -> bool:
        """Whether a live connection of this id belongs to another user, and must not be ended by this one."""
        owner = self._owners.get(client_id)
        return owner is not None and owner.user != user

    def take(self, client_id: str, owner: Owner) -> None:
        """Make `owner` the one connection of this client id."""
        old = self._owners.get(client_id)
        self._owners[client_id] = owner
        if old is not None and old is not owner:
            self._lost(client_id)
            old.evict("taken_over: the client id connected again", fenced=False)

    def release(self, client_id: str, owner: Owner) -> None:
        """The connection has ended; nothing happens if the id has another owner by now."""
        if self._owners.get(client_id) is owner:
            del self._owners[client_id]

    def close_later(self, owner: Owner) -> None:
        """The connection has ended while the broker was away, to be reported when it is back."""
        if len(self._left) >= CLOSED_LATER_MAX:
            del self._left[next(iter(self._left))]
            self._metrics.sessions.will_failures.child("leave_unsaid").value += 1
            self._log.warning("leave_unsaid", remembered_max=CLOSED_LATER_MAX)
        self._left[owner] = None

    def rules_changed(self) -> None:
        """The rules have changed: each connection checks its permissions again, many in the same turn.

        Publishes are checked by the new rules from here on; subscriptions are checked in slices, so that a large fleet
        does not block the loop.
        """
        for owner in self:
            owner.rules_changed()
        busy = bool(self._unrevised)
        self._unrevised = deque(self)
        if not busy:
            self._revise()

    def _revise(self) -> None:
        for _ in range(min(REVISED_PER_TURN_MAX, len(self._unrevised))):
            self._unrevised.popleft().revise()
        if self._unrevised:
            asyncio.get_running_loop().call_soon(self._revise)

    def _fenced(self, command: Command) -> None:
        fenced = decode(SessionFenced, command.body)
        owner = self._owners.get(fenced.client_id)
        if owner is None:
            self._log.debug("fence_outdated", client_id=fenced.client_id, epoch=fenced.epoch)
            return
        self._lost(fenced.client_id)
        owner.fence(fenced.epoch, hand_over=fenced.hand_over)

    def _lost(self, client_id: str) -> None:
        self._metrics.sessions.taken_over.value += 1
        self._taken_over(client_id)

    def _reopen(self) -> None:
        left, self._left = self._left, {}
        if self._was_up:
            for owner in (*left, *self):
                owner.reopen()
        self._was_up = True


LOG = get_logger("proxy.services")
T = TypeVar("T")
Answered = Callable[[T | None, Exception | None], None]
"""Called once, never inside the request: the answer and None, or None and `Refused`, `LinkDownError` or the answer's
error."""


class SessionCalls:
    """The sessions of one proxy, towards its broker."""

    def __init__(self, link: Link, publisher: Publisher, keep: Callable[[asyncio.Future[bytes]], None]) -> None:
        """`keep` keeps tasks that a stopping proxy waits for."""
        self._link = link
        self._publisher = publisher
        self._keep = keep

    def open(self, request: SessionOpen, answered: Answered[SessionOpened], timeout_ms: int) -> None:
        """Take a session; the answer contains what to resume. Without one it may be open at the broker all the same."""
        self._call(RequestCode.SESSION_OPEN, request, SessionOpened, answered, timeout_ms)

    def subscribe(self, request: SubscribeRequest, answered: Answered[Subscribed]) -> None:
        """Subscribe, after what has been published."""
        self._publisher.go_on()
        self._call(RequestCode.SUBSCRIBE, request, Subscribed, answered)

    def close(self, request: SessionClose) -> None:
        """Give a session back. Raises LinkDownError. One that another connection has taken meanwhile is not ours to
        give back, and a broker that is lost notices by itself: both are expected, and no fault."""
        posted = self._link.post(RequestCode.SESSION_CLOSE, encode(request))
        posted.add_done_callback(partial(_closed, request))
        self._keep(posted)

    def _call(
        self,
        code: int,
        request: msgspec.Struct,
        kind: type[S],
        answered: Answered[S],
        timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> None:
        try:
            self._link.call(code, encode(request), partial(_decoded, kind, answered), timeout_ms)
        except LinkDownError as error:
            soon(partial(answered, None, error))


def _closed(request: SessionClose, posted: asyncio.Future[bytes]) -> None:
    error = None if posted.cancelled() else posted.exception()
    if isinstance(error, Refused) and error.code == ResponseCode.ILLEGAL_OPERATION:
        LOG.info("session_taken_over", client_id=request.client_id, epoch=request.epoch)
    elif error is not None:
        LOG.warning("session_not_closed", client_id=request.client_id, error=str(error))


def _decoded(kind: type[S], answered: Answered[S], body: bytes, error: Exception | None) -> None:
    answer = None
    if error is None:
        try:
            answer = decode(kind, body)
        except LightMQError as wrong:
            error = wrong
    answered(answer, error)


@dataclass(kw_only=True, slots=True)
class Services:
    """The parts of one proxy."""

    config: ProxyConfig
    metrics: ProxyMetrics
    link: Link
    history: HistorySteps
    publisher: Publisher
    owners: Owners
    tools: DeliveryTools
    access: AccessControl
    clock: Clock
    quotas: Quotas
    sys_tree: SysTree
    exact: Qos2Flows
    openings: Openings
    tasks: set[asyncio.Future[Any]] = field(default_factory=set)
    """Tasks that a stopping proxy waits for."""
    calls: SessionCalls = field(init=False)
    """Requests about sessions."""
    publishing: PublishingParts = field(init=False)
    """Shared by clients that publish."""
    subscribing: SubscriptionParts = field(init=False)
    """Shared by clients that subscribe."""

    def __post_init__(self) -> None:
        self.calls = SessionCalls(self.link, self.publisher, self._keep_answer)
        config, quotas = self.config, self.quotas
        self.publishing = PublishingParts(
            self.publisher,
            quotas.rates,
            self.clock,
            self.metrics,
            retained_payload_bytes_max=config.quotas.retained_payload_bytes_max,
            report_no_subscribers=config.report_no_subscribers,
        )
        self.subscribing = SubscriptionParts(self.link, self.history, self.metrics, quotas, self.sys_tree)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work`; it is kept until it is done."""
        task = asyncio.get_running_loop().create_task(work)
        self.keep(task)
        return task

    def keep(self, task: asyncio.Future[Any]) -> None:
        """Keep a task until it is done; its failure, if any, has been handled by its creator."""
        self.tasks.add(task)
        task.add_done_callback(self._done)

    def _keep_answer(self, answer: asyncio.Future[bytes]) -> None:
        """The same for an answer whose failure has been logged by then."""
        self.tasks.add(answer)
        answer.add_done_callback(self.tasks.discard)

    def _done(self, task: asyncio.Future[Any]) -> None:
        self.tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            LOG.error("step_failed", error=repr(error), exc_info=error)
