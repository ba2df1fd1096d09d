"""SESSION_OPEN, -CLOSE, SUBSCRIBE, UNSUBSCRIBE, SESSION_FLOW (9010-9014), APPEND_OFFSETS (9006), SESSION_FENCED (9016).

The rules are in `broker.sessions.sessions`; here requests are decoded, the previous owner is notified that it is fenced
(with the epoch it held), and every answer waits until what it shows is confirmed. A subscription's queue, start offset
and retained messages are captured in one call of one loop turn. SUBSCRIBEs that come in one turn gather
and are carried out together, behind the messages and requests that came before them, ahead of those that come after.

A session that another proxy has is handed over first (`Handovers`): its holder says how far the client has come.

    SESSION_OPEN -> SESSION_FENCED (hand over) to the holder -> its SESSION_CLOSE -> the session is opened and answered

So the next proxy repeats exactly what was in flight, under its packet ids. A holder that does not answer within
`HANDOVER_MS`, or has disconnected, hands in nothing: the session is taken over as it is in the log.
Invariant: every SESSION_OPEN that waits is answered once, in the order of arrival per client id. Loop thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

import msgspec

from broker.requests import refusal_of
from broker.store.errors import StoreError
from remoting.access.rights import CONSUME, SESSION
from remoting.protocol.bodies.session_body import (
    FAILURE,
    FilterRequest,
    FlowBatch,
    FlowNoted,
    SessionClose,
    SessionFenced,
    SessionOpen,
    Subscribed,
    SubscribeRequest,
    SubscribeResult,
    Unsubscribed,
    UnsubscribeRequest,
    decode,
    decode_offsets,
    encode,
)
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.commands import FLAG_ONEWAY, Command
from remoting.protocol.records import names, topics
from remoting.protocol.records.topics import inner_filter, share_of
from remoting.server.authorizer import ANONYMOUS
from remoting.transport.calls import failure_reply
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.publishing.append import Appender
    from broker.requests import RequestTools
    from broker.retained.feature import Retained
    from broker.retained.search import Found, RetainedSearches
    from broker.sessions.client_session import ClientSession
    from broker.sessions.sessions import Sessions
    from broker.shared.feature import SharedFeature
    from broker.wills.feature import WillVerdicts

R = TypeVar("R", SubscribeRequest, UnsubscribeRequest)
FILTERS_PER_TURN = 250
"""Filters of one SUBSCRIBE or UNSUBSCRIBE handled in one turn of the loop: about ten milliseconds, where each needs a
new queue. A packet has up to 4,096, and a proxy that comes back asks for all of a session at once."""
HANDOVER_MS = 1_000
"""How long the holder of a session may take to hand it in."""


class Handovers:
    """SESSION_OPENs that wait for a holder, by client id."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[Callable[[], None]]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def ask(self, session: ClientSession, proceed: Callable[[], None]) -> None:
        """Have the session's holder hand it in, then call `proceed`."""
        client_id = session.client_id
        waiting = self._waiting.setdefault(client_id, [])
        waiting.append(proceed)
        if len(waiting) == 1:
            loop = asyncio.get_running_loop()
            self._timers[client_id] = loop.call_later(HANDOVER_MS / 1_000, self.handed_in, client_id)
            body = encode(SessionFenced(client_id, session.epoch, hand_over=True))
            cast("Peer", session.owner).send(Command(RequestCode.SESSION_FENCED, flag=FLAG_ONEWAY, body=body))

    def handed_in(self, client_id: str) -> None:
        """The session has no owner any more, or will not be handed in: wake the requests that wait for it."""
        timer = self._timers.pop(client_id, None)
        if timer is not None:
            timer.cancel()
        for proceed in self._waiting.pop(client_id, ()):
            proceed()

    def stop(self) -> None:
        """No further timer."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._waiting.clear()


RETAIN_HANDLING_SHIFT = 2
_OWNER_ATTRIBUTE = "session owner"


class SessionRequests:
    """What proxies send on behalf of their clients."""

    def __init__(
        self,
        tools: RequestTools,
        *,
        sessions: Sessions,
        retained: Retained,
        searches: RetainedSearches,
        shared: SharedFeature,
        verdicts: WillVerdicts,
        handovers: Handovers,
        appender: Appender,
    ) -> None:
        self._authorizer = tools.authorizer
        self._answers = tools.answers
        self._store = tools.store
        self._clock = tools.clock
        self._metrics = tools.metrics
        self._sessions = sessions
        self._retained = retained
        self._shared = shared
        self._verdicts = verdicts
        self._handovers = handovers
        self._appender = appender
        self._gathered: list[tuple[Peer, Command, SubscribeRequest]] = []
        """SUBSCRIBEs of this turn."""
        self._searches = searches
        self._behind: dict[str, list[Callable[[], None]]] = {}
        """Client id with a search under way -> its further requests about subscriptions, in their order."""

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {
            Code.APPEND_OFFSETS: self.append_offsets,
            Code.SESSION_OPEN: self.session_open,
            Code.SESSION_CLOSE: self.session_close,
            Code.SUBSCRIBE: self.subscribe,
            Code.UNSUBSCRIBE: self.unsubscribe,
            Code.SESSION_FLOW: self.session_flow,
        }

    def session_open(self, peer: Peer, command: Command) -> None:
        """Take a client id over; answers what to resume."""
        request = decode(SessionOpen, command.body)
        self._authorizer.authorize(peer, command, SESSION, request.client_id)
        self._appender.catch_up()
        held = self._sessions.held_elsewhere(request, peer, self._clock.now_ms())
        if held is None:
            self._open(peer, command, request)
        else:  # handed in or not; a peer that has disconnected by then loses the session in the next turn
            self._handovers.ask(held, partial(self._open_later, peer, command, request))

    def _open_later(self, peer: Peer, command: Command, request: SessionOpen) -> None:
        try:
            self._open(peer, command, request)
        except (Refused, StoreError) as error:
            peer.send(self._failure(peer, command, error))

    def _failure(self, peer: Peer, command: Command, error: Exception) -> Command:
        """What the router would answer when a handler raises this."""
        refused = refusal_of(self._metrics, error) if isinstance(error, StoreError) else error
        return failure_reply(peer, command, refused)

    def _open(self, peer: Peer, command: Command, request: SessionOpen) -> None:
        """Take a client id over for the proxy at `peer`; Refused or StoreError."""
        self._appender.flush_exact()
        opened = self._sessions.open(request, self._watch_owner(peer), self._clock.now_ms())
        if opened.fenced is not None:
            owner, epoch = opened.fenced
            self._metrics.fenced.value += 1
            self._shared.away(request.client_id)
            body = encode(SessionFenced(request.client_id, epoch))
            cast("Peer", owner).send(Command(RequestCode.SESSION_FENCED, flag=FLAG_ONEWAY, body=body))
        self._verdicts.run()
        self._answers.reply_at(opened.position, peer, command.reply(body=encode(opened.reply)))

    def _watch_owner(self, peer: Peer) -> Peer:
        """The peer as an owner of sessions: when its connection ends, so does its ownership."""
        if _OWNER_ATTRIBUTE not in peer.attributes:
            peer.attributes[_OWNER_ATTRIBUTE] = True
            peer.on_close(lambda _reason: self._owner_left(peer))
        return peer

    def _owner_left(self, peer: Peer) -> None:
        self._appender.catch_up()
        self._appender.flush_exact()
        self._sessions.owner_closed(peer, self._clock.now_ms())
        self._verdicts.run()

    def session_close(self, peer: Peer, command: Command) -> None:
        """Give a client id back, keeping or forgetting the session."""
        request = decode(SessionClose, command.body)
        self._appender.catch_up()
        position = self._sessions.close(request, self._clock.now_ms())
        self._shared.away(request.client_id)
        self._verdicts.run()
        self._handovers.handed_in(request.client_id)
        self._answers.reply_at(position, peer, command.reply())

    def subscribe(self, peer: Peer, command: Command) -> None:
        """Add subscriptions, with those of the others that come in this turn; answers queue, start offset and the
        retained messages of each."""
        request = decode(SubscribeRequest, command.body)
        if not self._authorizer.trusts(peer, command):
            for wanted in request.filters:
                self._authorizer.authorize(peer, command, CONSUME, inner_filter(wanted.filter))
        if not self._gathered:
            self._appender.behind(self._subscribe_gathered)
        self._gathered.append((peer, command, request))

    def _subscribe_gathered(self) -> None:
        """What of all these goes into the log for queues that do not exist yet is one record."""
        gathered, self._gathered = self._gathered, []
        if len(gathered) > 1:
            self._open_queues([each for _peer, _command, each in gathered if len(each.filters) <= FILTERS_PER_TURN])
        for peer, command, request in gathered:
            self._in_order(request.client_id, peer, command, partial(self._subscribe_one, request))

    def _subscribe_one(self, request: SubscribeRequest, peer: Peer, command: Command) -> None:
        """Subscribe; the answer follows when the retained messages are known."""
        results: list[SubscribeResult] = []
        wanted: list[tuple[int, bytes]] = []
        position = 0

        def subscribe(part: SubscribeRequest) -> None:
            nonlocal position
            if len(part.filters) < len(request.filters):
                self._open_queues([part])
            found, position = self._sessions.subscribe(part)
            for index, (one, result) in enumerate(zip(part.filters, found, strict=True), len(results)):
                # [MQTT 5 §4.8.2] retained messages are not sent for a shared subscription.
                if (
                    result.code < FAILURE
                    and _wants_retained(one, existed=result.existed)
                    and len(self._retained)
                    and share_of(one.filter) is None
                ):
                    wanted.append((index, one.filter.encode()))
            results.extend(found)

        def found(retained: Found) -> None:
            try:
                body = encode(Subscribed(results, retained))
                self._answers.reply_at(position, peer, command.reply(body=body))
            finally:
                self._go_on(request.client_id)

        self._in_parts(request, peer, command, subscribe, lambda: self._searches.begin(wanted, found))

    def _in_parts(
        self, request: R, peer: Peer, command: Command, do: Callable[[R], None], finish: Callable[[], None]
    ) -> None:
        """Handle the filters of a request, so many in a turn of the loop; what else comes for the session waits.

        `finish` lets it go on. Raises what the first part does; a fault of a later one is answered here.
        """
        first = 0

        def step() -> None:
            nonlocal first
            do(msgspec.structs.replace(request, filters=request.filters[first : first + FILTERS_PER_TURN]))
            first += FILTERS_PER_TURN
            self._behind.setdefault(request.client_id, [])
            if first < len(request.filters):
                asyncio.get_running_loop().call_soon(later_step)
            else:
                finish()

        def later_step() -> None:
            try:
                step()
            except Exception as error:  # noqa: BLE001 - the fault of one request leaves no other unanswered
                peer.send(self._failure(peer, command, error))
                self._go_on(request.client_id)

        step()

    def _in_order(self, client_id: str, peer: Peer, command: Command, work: Callable[[Peer, Command], None]) -> None:
        """Do this for a session, behind its SUBSCRIBE whose retained messages are being searched for."""
        behind = self._behind.get(client_id)
        if behind is not None:
            behind.append(partial(self._in_order, client_id, peer, command, work))
            return
        try:
            work(peer, command)
        except Exception as error:  # noqa: BLE001 - the fault of one request leaves no other unanswered
            peer.send(self._failure(peer, command, error))

    def _go_on(self, client_id: str) -> None:
        for work in self._behind.pop(client_id, ()):
            work()

    def _open_queues(self, requests: Sequence[SubscribeRequest]) -> None:
        """Make the queues of the exact topics among their filters."""
        wanted = []
        for request in requests:
            session = self._sessions.get(request.client_id)
            user = (session.user if session is not None else None) or ANONYMOUS
            for one in request.filters:
                topic = inner_filter(one.filter)
                if topics.validate_filter(topic) is None and not topics.is_wildcard(topic):
                    wanted.append((names.light_queue_name(topic.encode()), user))
        with suppress(StoreError):  # each request is refused by itself when it needs its queues
            self._sessions.exact_topics.subscribe(wanted)

    def unsubscribe(self, peer: Peer, command: Command) -> None:
        """Remove subscriptions."""
        request = decode(UnsubscribeRequest, command.body)
        self._appender.catch_up()
        self._in_order(request.client_id, peer, command, partial(self._unsubscribe_one, request))

    def _unsubscribe_one(self, request: UnsubscribeRequest, peer: Peer, command: Command) -> None:
        found: list[bool] = []
        position = 0

        def unsubscribe(part: UnsubscribeRequest) -> None:
            nonlocal position
            removed, position = self._sessions.unsubscribe(part, self._clock.now_ms())
            found.extend(removed)

        def finish() -> None:
            self._answers.reply_at(position, peer, command.reply(body=encode(Unsubscribed(found))))
            self._go_on(request.client_id)

        self._in_parts(request, peer, command, unsubscribe, finish)

    def session_flow(self, peer: Peer, command: Command) -> None:
        """Note steps of QoS 2 of many sessions as one record; the answer names those that are left out."""
        batch = decode(FlowBatch, command.body)
        position, fenced = self._sessions.flow(batch, peer)
        for flow in batch.flows:
            if flow.reserved:
                self._shared.noted(peer, flow)
        self._metrics.dropped.child("flow_fenced").value += len(fenced)
        self._answers.reply_at(position, peer, command.reply(body=encode(FlowNoted(fenced)) if fenced else b""))

    def append_offsets(self, peer: Peer, command: Command) -> Command | None:
        """Commit the offsets of many sessions as one record; those of fenced sessions are left out and counted."""
        before = self._sessions.offsets_fenced
        changes = []
        for key, queue_id, offset in decode_offsets(command.body):
            change = self._sessions.commit(key.decode("utf-8", "replace"), queue_id, offset, peer)
            if change is not None:
                changes.append(change)
        self._metrics.dropped.child("offset_fenced").value += self._sessions.offsets_fenced - before
        if not changes:
            return command.reply()
        position = self._store.append_state(changes)
        if not command.is_oneway:
            self._answers.reply_at(position, peer, command.reply())
        return None


def _wants_retained(wanted: FilterRequest, *, existed: bool) -> bool:
    """Retain handling [MQTT-3.3.1-9] to [MQTT-3.3.1-11]: 0 always, 1 for a new subscription, 2 never."""
    handling = wanted.options >> RETAIN_HANDLING_SHIFT
    return handling == 0 or (handling == 1 and not existed)
