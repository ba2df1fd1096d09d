"""What every client of the proxy shares: made once by the composition root, handed to each client.

Requests about sessions (`SessionCalls`) leave at once, their answers come later in their own shape. Those about one
client id are carried out in the order in which they were made, and a SUBSCRIBE behind what clients of this proxy
published before, unless that waits for the disk.
Invariant: `Services` has no behaviour but keeping track of tasks. Loop rule: on the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from mqtt_proxy.access.contract import AccessControl
from mqtt_proxy.config import ProxyConfig
from mqtt_proxy.delivery.delivery import DeliveryTools
from mqtt_proxy.link import Link, LinkDownError
from mqtt_proxy.metrics import ProxyMetrics
from mqtt_proxy.publishing.inbound import PublishingParts
from mqtt_proxy.publishing.publisher import Publisher
from mqtt_proxy.quotas import Quotas
from mqtt_proxy.sessions.owners import Owners
from mqtt_proxy.sessions.qos2 import Qos2Flows
from mqtt_proxy.subscriptions import SubscriptionParts
from mqtt_proxy.sys_topics import SysTree
from remoting.protocol.bodies.session_body import (
    SessionClose,
    SessionOpen,
    SessionOpened,
    Subscribed,
    SubscribeRequest,
    decode,
    encode,
)
from remoting.protocol.errors import LightMQError
from remoting.protocol.frames.codes import RequestCode
from remoting.transport.turn import soon
from runtime.clock import Clock
from runtime.logs import get_logger

if TYPE_CHECKING:
    import msgspec

    from mqtt_proxy.link import Link
    from mqtt_proxy.publishing.publisher import Publisher

    S = TypeVar("S", bound=msgspec.Struct)

T = TypeVar("T")
Answered = Callable[[T | None, Exception | None], None]
"""Called once, never inside the request: the answer and None, or None and `Refused`, `LinkDownError` or what is wrong
with the answer."""


class SessionCalls:
    """The sessions of one proxy, towards its broker."""

    def __init__(self, link: Link, publisher: Publisher, keep: Callable[[asyncio.Future[bytes]], None]) -> None:
        """`keep` holds what a stopping proxy waits for."""
        self._link = link
        self._publisher = publisher
        self._keep = keep

    def open(self, request: SessionOpen, answered: Answered[SessionOpened]) -> None:
        """Take a session; the answer says what to resume."""
        self._call(RequestCode.SESSION_OPEN, request, SessionOpened, answered)

    def subscribe(self, request: SubscribeRequest, answered: Answered[Subscribed]) -> None:
        """Subscribe, behind what has been published."""
        self._publisher.go_on()
        self._call(RequestCode.SUBSCRIBE, request, Subscribed, answered)

    def close(self, request: SessionClose) -> None:
        """Give a session back. Raises LinkDownError."""
        self._keep(self._link.post(RequestCode.SESSION_CLOSE, encode(request)))

    def _call(self, code: int, request: msgspec.Struct, kind: type[S], answered: Answered[S]) -> None:
        try:
            self._link.call(code, encode(request), partial(_decoded, kind, answered))
        except LinkDownError as error:
            soon(answered, None, error)


def _decoded(kind: type[S], answered: Answered[S], body: bytes, error: Exception | None) -> None:
    answer = None
    if error is None:
        try:
            answer = decode(kind, body)
        except LightMQError as wrong:
            error = wrong
    answered(answer, error)


LOG = get_logger("proxy.services")


@dataclass(kw_only=True, slots=True)
class Services:
    """The parts of one proxy."""

    config: ProxyConfig
    metrics: ProxyMetrics
    link: Link
    publisher: Publisher
    owners: Owners
    tools: DeliveryTools
    access: AccessControl
    clock: Clock
    quotas: Quotas
    sys_tree: SysTree
    exact: Qos2Flows
    tasks: set[asyncio.Future[Any]] = field(default_factory=set)
    """Work that a stopping proxy waits for."""
    calls: SessionCalls = field(init=False)
    """What is said to the broker about sessions."""
    publishing: PublishingParts = field(init=False)
    """What clients that publish share."""
    subscribing: SubscriptionParts = field(init=False)
    """What clients that subscribe share."""

    def __post_init__(self) -> None:
        self.calls = SessionCalls(self.link, self.publisher, self.keep)
        config, quotas = self.config, self.quotas
        self.publishing = PublishingParts(
            self.publisher,
            quotas.rates,
            self.clock,
            self.metrics,
            retained_payload_bytes_max=config.quotas.retained_payload_bytes_max,
            report_no_subscribers=config.report_no_subscribers,
        )
        self.subscribing = SubscriptionParts(
            self.link, self.metrics, quotas, self.sys_tree, config.subscriptions_per_session_max
        )

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work`; it is kept until it is done."""
        task = asyncio.get_running_loop().create_task(work)
        self.keep(task)
        return task

    def keep(self, task: asyncio.Future[Any]) -> None:
        """Keep a task until it is done; its failure, if any, has been dealt with by whoever made it."""
        self.tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Future[Any]) -> None:
        self.tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            LOG.error("step_failed", error=repr(error), exc_info=error)
