"""SESSION_OPEN, -CLOSE, SUBSCRIBE, UNSUBSCRIBE, SESSION_FLOW (9010-9014), APPEND_OFFSETS (9006), SESSION_FENCED (9016).

The rules are in `broker.meta.sessions`; here requests are decoded, the previous owner is told that it is fenced (with
the epoch it held), and every answer waits until what it shows is confirmed. A subscription's queue, start offset and
retained messages are captured in one call of one loop turn.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, cast

from broker.api.access import CONSUME, SESSION
from broker.api.append import refusal_of
from broker.store.errors import StoreError
from remoting.protocol.codes import RequestCode
from remoting.protocol.commands import FLAG_ONEWAY, Command
from remoting.protocol.errors import Refused
from remoting.protocol.offsets_body import decode_offsets
from remoting.protocol.session_body import (
    FAILURE,
    FilterRequest,
    FlowBatch,
    SessionClose,
    SessionFenced,
    SessionOpen,
    SessionOpened,
    Subscribe,
    Subscribed,
    Unsubscribe,
    Unsubscribed,
    decode,
    encode,
)
from remoting.protocol.share_names import inner_filter, share_of
from remoting.transport.contracts import Peer
from remoting.transport.direct import Said

if TYPE_CHECKING:
    from broker.api.context import Broker

RETAIN_HANDLING_SHIFT = 2


def session_open(broker: Broker, peer: Peer, command: Command) -> None:
    """Take a client id over; answers what to resume."""
    request = decode(SessionOpen, command.body)
    broker.authorizer.authorize(peer, command, SESSION, request.client_id)

    def said(opened: SessionOpened | None, error: Exception | None) -> None:
        if opened is not None:
            peer.send(command.reply(body=encode(opened)))
            return
        assert isinstance(error, Refused), error
        peer.send(command.reply(error.code, error.remark, error.fields))

    open_session(broker, peer, request, said)


def open_session(broker: Broker, peer: Peer, request: SessionOpen, said: Said[SessionOpened]) -> None:
    """Take a client id over for the proxy at `peer`; `said` hears what to resume once that is confirmed."""
    try:
        held = broker.sessions.held_elsewhere(request, peer, broker.clock.now_ms())
    except Refused as refused:
        said(None, refused)
        return
    if held is None:
        _open(broker, peer, request, said)
    else:  # the holder hands the session in, or does not; a peer that is gone by then loses it in the next turn
        broker.handovers.ask(held, partial(_open, broker, peer, request, said))


def _open(broker: Broker, peer: Peer, request: SessionOpen, said: Said[SessionOpened]) -> None:
    broker.appender.flush_exact()
    try:
        opened = broker.sessions.open(request, broker.watch_owner(peer), broker.clock.now_ms())
    except (Refused, StoreError) as error:
        said(None, error if isinstance(error, Refused) else refusal_of(broker.metrics, error))
        return
    if opened.fenced is not None:
        owner, epoch = opened.fenced
        broker.metrics.fenced.value += 1
        broker.shared.away(request.client_id)
        body = encode(SessionFenced(request.client_id, epoch))
        cast("Peer", owner).send(Command(RequestCode.SESSION_FENCED, flag=FLAG_ONEWAY, body=body))
    broker.will_room.run()
    broker.say_at(opened.position, opened.reply, said)


def session_close(broker: Broker, peer: Peer, command: Command) -> None:
    """Give a client id back, keeping or forgetting the session."""
    position = close_session(broker, decode(SessionClose, command.body))
    broker.reply_at(position, peer, command.reply())


def close_session(broker: Broker, request: SessionClose) -> int:
    """The same; the log position at which it holds. Raises Refused or StoreError."""
    position = broker.sessions.close(request, broker.clock.now_ms())
    broker.shared.away(request.client_id)
    broker.will_room.run()
    broker.handovers.handed_in(request.client_id)
    return position


def subscribe(broker: Broker, peer: Peer, command: Command) -> None:
    """Add subscriptions; answers queue, start offset and the retained messages of each."""
    request = decode(Subscribe, command.body)
    for wanted in request.filters:
        broker.authorizer.authorize(peer, command, CONSUME, inner_filter(wanted.filter))
    subscribed, position = subscribe_session(broker, request)
    broker.reply_at(position, peer, command.reply(body=encode(subscribed)))


def subscribe_session(broker: Broker, request: Subscribe) -> tuple[Subscribed, int]:
    """Add subscriptions; (what became of them, the log position at which that holds). Raises Refused or StoreError."""
    results, position = broker.sessions.subscribe(request)
    retained = []
    for index, (wanted, result) in enumerate(zip(request.filters, results, strict=True)):
        # [MQTT 5 §4.8.2] retained messages are not sent for a shared subscription.
        if (
            result.code < FAILURE
            and _wants_retained(wanted, existed=result.existed)
            and len(broker.retained)
            and share_of(wanted.filter) is None
        ):
            positions = broker.retained.positions(wanted.filter.encode())
            if positions:
                retained.append((index, positions))
    return Subscribed(results, retained), position


def _wants_retained(wanted: FilterRequest, *, existed: bool) -> bool:
    """Retain handling [MQTT-3.3.1-9] to [MQTT-3.3.1-11]: 0 always, 1 for a new subscription, 2 never."""
    handling = wanted.options >> RETAIN_HANDLING_SHIFT
    return handling == 0 or (handling == 1 and not existed)


def unsubscribe(broker: Broker, peer: Peer, command: Command) -> None:
    """Remove subscriptions."""
    request = decode(Unsubscribe, command.body)
    found, position = broker.sessions.unsubscribe(request, broker.clock.now_ms())
    broker.reply_at(position, peer, command.reply(body=encode(Unsubscribed(found))))


def session_flow(broker: Broker, peer: Peer, command: Command) -> None:
    """Note steps of QoS 2 of many sessions as one record."""
    before = broker.sessions.flows_fenced
    batch = decode(FlowBatch, command.body)
    position = broker.sessions.flow(batch, peer)
    for flow in batch.flows:
        if flow.reserved:
            broker.shared.noted(peer, flow)
    broker.metrics.dropped.child("flow_fenced").value += broker.sessions.flows_fenced - before
    broker.reply_at(position, peer, command.reply())


def append_offsets(broker: Broker, peer: Peer, command: Command) -> Command | None:
    """Commit the offsets of many sessions as one record; those of fenced sessions are left out and counted."""
    before = broker.sessions.offsets_fenced
    changes = []
    for key, queue_id, offset in decode_offsets(command.body):
        change = broker.sessions.commit(key.decode("utf-8", "replace"), queue_id, offset, peer)
        if change is not None:
            changes.append(change)
    broker.metrics.dropped.child("offset_fenced").value += broker.sessions.offsets_fenced - before
    if not changes:
        return command.reply()
    position = broker.store.append_state(changes)
    if not command.is_oneway:
        broker.reply_at(position, peer, command.reply())
    return None
