"""Wills: sent to the broker with SESSION_OPEN, authorized here again when one is due.

The broker stores a will, counts its delay, notices when a proxy dies, and asks one proxy for a verdict when a will is
due. That proxy calls `authorize()` for the user of the connection, as at CONNECT: a right that was revoked meanwhile
counts. The verdict is sent after everything that clients of this proxy published before. The outcome is counted and
logged; there is no client left to inform.
Loop rule: on the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from mqtt_proxy.access.auth import AccessControl
from mqtt_proxy.link import Link, LinkDownError
from mqtt_proxy.metrics import ProxyMetrics
from mqtt_proxy.mqtt.codec.packets import Will
from remoting.access.rules import Action, Identity, Rule
from remoting.protocol.bodies.session_body import WillDue, WillSpec, WillVerdict, decode, encode
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.properties import to_pairs
from runtime.logs import get_logger

LOG = get_logger("proxy.wills")


class Author(msgspec.Struct, array_like=True):
    """The user of a will's connection, as the broker stores it."""

    name: str
    anonymous: bool
    client_id: str
    groups: tuple[str, ...] = ()
    rules: tuple[Rule, ...] = ()
    bridge: bool = False


def will_spec(will: Will, identity: Identity) -> WillSpec:
    """The will of a CONNECT as the broker stores it."""
    author = Author(
        identity.name, identity.anonymous, identity.client_id, identity.groups, identity.rules, identity.bridge
    )
    pairs = [] if will.properties is None else to_pairs(will.properties)
    return WillSpec(will.topic, will.payload, will.qos, will.retain, will.delay_s, pairs, encode(author))


def identity_of(author: bytes) -> Identity:
    """The user of a will's connection. Raises RemoteViolation when it cannot be read."""
    given = decode(Author, author)
    return Identity(given.name, given.anonymous, given.client_id, given.groups, given.rules, bridge=given.bridge)


class WillJudge:
    """Answers the broker's questions about wills that are due."""

    def __init__(
        self,
        link: Link,
        access: AccessControl,
        metrics: ProxyMetrics,
        *,
        send_publishes: Callable[[], None],
        keep: Callable[[asyncio.Future[Any]], None],
    ) -> None:
        """`send_publishes` sends what has been published so far; `keep` holds what a stopping proxy waits for."""
        self._link = link
        self._access = access
        self._metrics = metrics
        self._send_publishes = send_publishes
        self._keep = keep
        self._link.on_push(RequestCode.WILL_DUE, self._due)
        self._link.on_up(self._watch)

    def _watch(self) -> None:
        if self._link.up:  # a connection that was lost again before this turn is followed by another
            self._link.post(RequestCode.WILL_WATCH, b"").add_done_callback(self._watched)

    def _watched(self, task: asyncio.Future[bytes]) -> None:
        if not task.cancelled() and task.exception() is not None:  # lost: repeated when the broker is back
            LOG.warning("wills_not_watched", error=str(task.exception()))

    def _due(self, command: Command) -> None:
        due = decode(WillDue, command.body)
        identity = identity_of(due.author)
        allowed = bool(self._access.authorize(identity, Action.WILL, due.topic, qos=due.qos, retain=due.retain))
        verdict = WillVerdict(due.client_id, due.epoch, allowed, "" if allowed else "not_authorized")
        self._send_publishes()
        try:
            task = self._link.post(RequestCode.WILL_VERDICT, encode(verdict))
        except LinkDownError:
            return  # the broker repeats the request to a proxy that is connected
        task.add_done_callback(lambda done: self._answered(verdict, done))
        self._keep(task)

    def _answered(self, verdict: WillVerdict, task: asyncio.Future[bytes]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if error is None and verdict.allowed:
            self._metrics.sessions.wills.value += 1
            return
        word = verdict.reason if error is None else "broker_lost" if isinstance(error, LinkDownError) else "broker"
        self._metrics.sessions.will_failures.child(word).value += 1
        LOG.warning("will_not_published", client_id=verdict.client_id, reason=word, error=str(error or ""))
