"""MQTT sessions of the whole cluster: who owns a client id, what it subscribed to, how far it has read.

Rules (MQTT 3.1.1 §3.1.2.4, §3.1.4, §4.1; MQTT 5 §3.1.2.4, §3.1.2.11.2, §3.14.2.2.2; the epoch is ours):
- One client id, one session. Opening it raises its epoch and fences the previous owner; what carries an older epoch is
  refused from then on.
- `present` is true exactly when a session with that id lived on and clean was not asked for.
- A session belongs to the user that opened it; another user may neither resume it, take it over nor clean it away.
- Wildcard queue, subscription and start offset are in the log before a subscription is answered
  (`subscriptions`); so are the steps of QoS 2 (`client_session`) and the will of a connection (`wills`).
- A session without expiry lives in memory and dies with its connection or its proxy. A durable one is a SESSION record
  and dies by expiry, counted from its close.

Every method that changes or shows state returns the log position its answer must wait for. Loop thread only.

A proxy that takes a session is given all there is to resume it from (`describe`).

When sessions end by themselves: a heap of due times, one live entry per session.

A session that closes repeatedly, or reconnects, does not grow the heap: it is entered when it has no entry, or an
earlier one is needed. An entry that comes too early puts the session in again at its due time. Entries of deleted
sessions are swept out when they outnumber the others.

Invariant: every closed durable session has an entry at or before its due time. Pure; time comes in as an argument.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.sessions.client_session import NO_OFFSETS, ClientSession, load_sessions, offset_key, pack_offset
from broker.sessions.subscriptions import ExactTopics, SubscriptionBook
from broker.store.errors import StoreFull
from broker.store.state import state_kinds
from broker.store.state.state_kinds import StateChange
from broker.wills.feature import WillRecord
from remoting.protocol.bodies.session_body import (
    HISTORY_BIT,
    WILL_DUE,
    FlowBatch,
    InflightEntry,
    SessionClose,
    SessionOpen,
    SessionOpened,
    SessionSubscription,
    SubscribeRequest,
    SubscribeResult,
    UnsubscribeRequest,
)
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode

if TYPE_CHECKING:
    from broker.shared.groups import SharedGroups
    from broker.store.log_store import LogStore
    from broker.subscriptions.filters import Filters, Subscribers
    from broker.wills.feature import Wills


_STALE_ENTRIES_MIN = 1_024
"""Below so many entries nothing is swept."""


NEVER_S = 0xFFFF_FFFF
"""Expiry of a session that does not end by itself, as MQTT 5 writes it."""
NEVER_MS = 1 << 62
"""A time that does not come."""


def due_ms(session: ClientSession) -> int:
    """When a closed session ends."""
    return NEVER_MS if session.expiry_s >= NEVER_S else session.closed_ms + session.expiry_s * 1_000


class ExpiryQueue:
    """Says which sessions have to be looked at."""

    def __init__(self, sessions: Mapping[str, ClientSession]) -> None:
        self._sessions = sessions
        self._heap: list[tuple[int, str]] = []
        self._wake_ms: dict[str, int] = {}
        """Client id -> the time of its live entry."""

    def __len__(self) -> int:
        return len(self._heap)

    def schedule(self, session: ClientSession) -> None:
        """A session has closed."""
        at_ms = due_ms(session)
        if at_ms == NEVER_MS:
            return
        if self._wake_ms.get(session.client_id, at_ms + 1) <= at_ms:
            return
        self._wake_ms[session.client_id] = at_ms
        heapq.heappush(self._heap, (at_ms, session.client_id))
        if len(self._heap) > max(_STALE_ENTRIES_MIN, 2 * len(self._sessions)):
            self._wake_ms = {name: wake_ms for name, wake_ms in self._wake_ms.items() if name in self._sessions}
            self._heap = [(wake_ms, name) for name, wake_ms in self._wake_ms.items()]
            heapq.heapify(self._heap)

    def over(self, now_ms: int) -> list[ClientSession]:
        """The closed sessions whose time has come."""
        found = []
        while self._heap and self._heap[0][0] <= now_ms:
            at_ms, client_id = heapq.heappop(self._heap)
            if self._wake_ms.get(client_id) != at_ms:
                continue
            del self._wake_ms[client_id]
            session = self._sessions.get(client_id)
            if session is None or session.owner is not None:
                continue
            if due_ms(session) <= now_ms:
                found.append(session)
            else:
                self.schedule(session)
        return found


@dataclass(slots=True)
class OpenedSession:
    """Answer to SESSION_OPEN: what to resume, whom to fence, and what to wait for."""

    reply: SessionOpened
    fenced: tuple[object, int] | None
    position: int


class Sessions:
    """Door to all sessions of this broker group. `expiry_s_max` is the longest any of them is kept."""

    def __init__(
        self,
        store: LogStore,
        filters: Filters,
        *,
        expiry_s_max: int,
        sessions_max: int,
        subscriptions_max: int,
        filters_max: int,
        now_ms: int,
        shared: SharedGroups,
        wills: Wills,
        subscribers: Subscribers,
    ) -> None:
        self._store = store
        self._expiry_s_max = expiry_s_max
        self._sessions_max = sessions_max
        self._epochs = 0
        self._sessions = load_sessions(store.state, self._next_epoch, now_ms)
        self._owned: dict[object, set[str]] = {}
        self._expiry = ExpiryQueue(self._sessions)
        self._book = SubscriptionBook(
            store, filters, shared, subscribers, subscriptions_max=subscriptions_max, filters_max=filters_max
        )
        self.wills = wills
        self.expired = 0
        self.taken_over = 0
        self.offsets_fenced = 0
        self.flows_fenced = 0
        self._dropped_position = 0
        """End of the log after the last deletion of a session, which must not be visible before that is confirmed."""
        self.shared_lost = 0
        """Messages of groups that ended with the session they were being sent to."""
        for session in self._sessions.values():
            self._book.restore(session)
            shared.pass_noted(session.shared_places(), session.subscriptions)
            self._expiry.schedule(session)

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[ClientSession]:
        return iter(self._sessions.values())

    @property
    def connected(self) -> int:
        """Sessions whose client is connected through some proxy."""
        return sum(map(len, self._owned.values()))

    def get(self, client_id: str) -> ClientSession | None:
        """The session of a client id, or None."""
        return self._sessions.get(client_id)

    def owned(self, client_id: str, owner: object) -> ClientSession | None:
        """The durable session of a client id while `owner` holds it."""
        session = self._sessions.get(client_id)
        return session if session is not None and session.owner is owner and session.durable else None

    # ---- open and close

    def held_elsewhere(self, request: SessionOpen, owner: object, now_ms: int) -> ClientSession | None:
        """The session if another owner has to hand it in first. Raises Refused as `open` does."""
        known = self._known(request, now_ms)
        if known is None or known.owner in (None, owner) or request.clean or request.continues:
            return None
        return known if known.durable and known.expiry_s > 0 else None

    def open(self, request: SessionOpen, owner: object, now_ms: int) -> OpenedSession:
        """Take the client id for `owner` and say what to resume.

        Raises:
            Refused: NO_PERMISSION when it belongs to another user, SYSTEM_BUSY when `sessions_max` is reached,
                ILLEGAL_OPERATION when a connection tries to continue whose session was taken over.
        """
        known = self._known(request, now_ms)
        fenced = self._fence(known, request, owner)
        present = known is not None and known.durable and known.expiry_s > 0 and not request.clean
        if known is not None and not present:  # a proxy that continues subscribes to the same filters again
            self._drop(known, now_ms, lost=bool(request.continues))
        session = known if present and known is not None else self._create(request)
        previous_epoch, session.epoch = session.epoch, self._next_epoch()
        session.expiry_s = min(request.expiry_s, self._expiry_s_max)
        session.closed_ms = 0
        session.owner, session.continued = owner, request.continues
        self._owned.setdefault(owner, set()).add(session.client_id)
        changes = self._store_will(request, session, now_ms, present=present)
        if present:
            self._save_if_room(session, changes)
        elif session.durable:
            self._save_first(session, changes)
        elif changes:
            with suppress(StoreFull):
                self._store.append_state(changes)
        shows_more = present or session.durable or bool(changes)
        position = self._store.end_position if shows_more else self._dropped_position
        return OpenedSession(describe(session, previous_epoch, present=present), fenced, position)

    def close(self, request: SessionClose, now_ms: int) -> int:
        """Close a session: keep offsets and in-flight list of one that outlives its connection, delete any other."""
        session = self.require(request.client_id, request.epoch)
        self._disown(session)
        if request.expiry_s is not None:
            session.expiry_s = min(request.expiry_s, self._expiry_s_max)
        lives_on = request.durable and session.durable and session.expiry_s > 0
        changes = self.wills.closed(
            session.client_id,
            session.epoch,
            now_ms,
            is_due=request.will == WILL_DUE,
            expiry_s=session.expiry_s if lives_on else 0,
        )
        if not lives_on:
            self._drop(session, now_ms, changes)
            return self._store.end_position
        session.closed_ms = now_ms
        session.inflight = [(one.packet_id, one.queue_id, one.offset) for one in request.inflight if one.qos < 2]
        for reason, count in request.removed:
            session.removed = session.removed or {}
            session.removed[reason] = session.removed.get(reason, 0) + count
        moved = [self._advance(session, queue_id, offset) for queue_id, offset in request.offsets]
        self._save_if_room(session, [*changes, *[change for change in moved if change is not None]])
        self._expiry.schedule(session)
        return session.position

    def owner_closed(self, owner: object, now_ms: int) -> int:
        """After a proxy's connection ended, delete sessions without expiry and close the others; returns how many.

        Their wills wait a while for the proxy, and longer for a delay.
        """
        gone = self._owned.pop(owner, set())
        for client_id in gone:
            session = self._sessions[client_id]
            self.wills.proxy_lost(client_id, session.epoch, now_ms)
            session.owner = None
            session.closed_ms = now_ms
            if session.durable and session.expiry_s > 0:
                self._expiry.schedule(session)
            else:
                self._drop(session, now_ms, lost=True)
        return len(gone)

    def end(self, client_id: str, now_ms: int) -> OpenedSession | None:
        """End a session whoever holds it, with all that is kept for it; None when there is none.

        Wills of its connections are due now: a will delay lasts no longer than its session.
        """
        session = self._sessions.get(client_id)
        if session is None:
            return None
        fenced = None if session.owner is None else (session.owner, session.epoch)
        self._disown(session)
        self.wills.session_over(client_id, now_ms)
        self._drop(session, now_ms)
        return OpenedSession(describe(session, session.epoch, present=False), fenced, self._dropped_position)

    def require(self, client_id: str, epoch: int) -> ClientSession:
        """The connected session of that epoch; Refused(ILLEGAL_OPERATION) when it was fenced or does not exist."""
        session = self._sessions.get(client_id)
        if session is None or session.epoch != epoch or session.owner is None:
            raise Refused(ResponseCode.ILLEGAL_OPERATION, f"session of epoch {epoch} is fenced or closed")
        return session

    # ---- subscriptions, offsets, QoS 2

    @property
    def exact_topics(self) -> ExactTopics:
        """What opens the queues of exact topics that are subscribed to."""
        return self._book.exact

    @exact_topics.setter
    def exact_topics(self, exact: ExactTopics) -> None:
        self._book.exact = exact

    def subscribe(self, request: SubscribeRequest) -> tuple[list[SubscribeResult], int]:
        """Add or change subscriptions; a filter that is not granted gets a code from 0x80 on and no queue."""
        session = self.require(request.client_id, request.epoch)
        changes: list[StateChange] = []
        results = [self._book.subscribe(session, wanted, changes) for wanted in request.filters]
        if session.durable:
            self._save(session, changes)
        return results, self._store.end_position

    def unsubscribe(self, request: UnsubscribeRequest, now_ms: int) -> tuple[list[bool], int]:
        """Remove subscriptions; the list says for each filter whether there was one."""
        session = self.require(request.client_id, request.epoch)
        found = []
        changes: list[StateChange] = []
        for topic_filter in request.filters:
            subscription = session.subscriptions.pop(topic_filter, None)
            found.append(subscription is not None)
            if subscription is not None:
                self._book.forget(session, topic_filter, subscription, now_ms, changes)
        if session.durable:
            self._save(session, changes)
        return found, self._store.end_position

    def commit(self, client_id: str, queue_id: int, offset: int, owner: object) -> StateChange | None:
        """Move a session's offset; the record to write, None for a clean session or a fenced owner (counted)."""
        session = self._sessions.get(client_id)
        if session is None or session.owner is not owner:
            self.offsets_fenced += 1
            return None
        change = self._advance(session, queue_id, offset)
        if change is not None and session.inflight:
            session.inflight = [entry for entry in session.inflight if entry[1] != queue_id or entry[2] >= offset]
        return change if session.durable else None

    def flow(self, batch: FlowBatch, owner: object) -> tuple[int, list[int]]:
        """Note steps of QoS 2; those of sessions `owner` has lost are left out and counted.

        Returns the log position to be confirmed, and the numbers of the flows that are left out.
        """
        changes: list[StateChange] = []
        begun: list[tuple[ClientSession, list[int]]] = []
        fenced: list[int] = []
        for number, flow in enumerate(batch.flows):
            session = self._sessions.get(flow.client_id)
            if session is None or session.owner is not owner or session.epoch != flow.epoch:
                fenced.append(number)
            elif session.durable:
                begun.append((session, session.begun(flow)))
                changes += session.advance(flow)
        self.flows_fenced += len(fenced)
        try:
            return self._store.append_state(changes) if changes else 0, fenced
        except StoreFull:
            for session, packet_ids in begun:
                session.take_back(packet_ids)
            raise

    # ---- expiry

    def expire(self, now_ms: int) -> int:
        """End the durable sessions whose expiry has come; returns how many."""
        over = self._expiry.over(now_ms)
        for session in over:
            self._drop(session, now_ms)
        self.expired += len(over)
        return len(over)

    # ---- inner parts

    def _known(self, request: SessionOpen, now_ms: int) -> ClientSession | None:
        known = self._sessions.get(request.client_id)
        if known is not None and known.owner is None and due_ms(known) <= now_ms:
            self._drop(known, now_ms)
            self.expired += 1
            known = None
        if known is None:
            if len(self._sessions) >= self._sessions_max:
                raise Refused(ResponseCode.SYSTEM_BUSY, f"sessions_max {self._sessions_max} sessions exist already")
            return None
        if known.user != request.user:
            raise Refused(ResponseCode.NO_PERMISSION, "the session of this client id belongs to another user")
        is_held = request.continues and known.owner is not None
        if is_held and request.continues not in (known.epoch, known.continued):
            raise Refused(ResponseCode.ILLEGAL_OPERATION, "the session was taken over by another connection")
        return known

    def _create(self, request: SessionOpen) -> ClientSession:
        session = ClientSession(request.client_id, request.user, request.expiry_s > 0, request.expiry_s, 0)
        if not session.durable:
            session.offsets = NO_OFFSETS
        self._sessions[request.client_id] = session
        return session

    def _store_will(
        self, request: SessionOpen, session: ClientSession, now_ms: int, *, present: bool
    ) -> list[StateChange]:
        record = None if request.will is None else WillRecord(session.expiry_s, 0, request.will)
        return self.wills.opened(
            session.client_id,
            session.epoch,
            record,
            now_ms,
            continues=request.continues,
            present=present,
            proxy=session.owner,
        )

    def _fence(self, session: ClientSession | None, request: SessionOpen, owner: object) -> tuple[object, int] | None:
        if session is None or session.owner is None:
            return None
        fenced = (session.owner, session.epoch)
        self._disown(session)
        if request.continues and fenced[0] is owner:
            return None  # the same connection asks again: the answer did not reach it in time
        self.taken_over += 1
        return fenced

    def _disown(self, session: ClientSession) -> None:
        owned = self._owned.get(session.owner)
        if owned is not None:
            owned.discard(session.client_id)
            if not owned:
                del self._owned[session.owner]
        session.owner = None

    def _advance(self, session: ClientSession, queue_id: int, offset: int) -> StateChange | None:
        if offset <= session.offsets.get(queue_id, offset):
            return None
        session.offsets[queue_id] = offset
        value = pack_offset(offset, (session.exact_below or {}).get(queue_id, 0))
        return StateChange(state_kinds.SESSION_OFFSET, offset_key(session.client_id, queue_id), value)

    def _save(self, session: ClientSession, changes: Sequence[StateChange] = ()) -> None:
        key, record = session.client_id.encode(), session.record()
        stored = self._store.state.get(state_kinds.SESSION, key)
        if not changes and stored is not None and stored[0] == record:
            return  # a request that is repeated, however often, costs no room
        session.position = self._store.append_state([StateChange(state_kinds.SESSION, key, record), *changes])

    def _save_first(self, session: ClientSession, changes: Sequence[StateChange]) -> None:
        """Write a new session; it does not exist when it cannot be written."""
        try:
            self._save(session, changes)
        except StoreFull:
            self._disown(session)
            del self._sessions[session.client_id]
            will = self.wills.get(session.client_id, session.epoch)
            if will is not None:
                self.wills.remove(will)
            raise

    def _save_if_room(self, session: ClientSession, changes: Sequence[StateChange] = ()) -> None:
        """Write a session that is already stored; a full disk does not prevent reading.

        What is not written is only known until the broker stops: some acknowledged messages are sent again then.
        """
        with suppress(StoreFull):
            self._save(session, changes)

    def _drop(
        self, session: ClientSession, now_ms: int, changes: Sequence[StateChange] = (), *, lost: bool = False
    ) -> None:
        written = list(changes)
        for topic_filter, subscription in session.subscriptions.items():
            self._book.forget(session, topic_filter, subscription, now_ms, written, lost=lost)
        key = session.client_id.encode()
        if self._store.state.get(state_kinds.SESSION, key) is not None:
            written.append(StateChange(state_kinds.SESSION, key, None))
        self.shared_lost += session.unfinished()
        written += session.forget_packet_ids()
        if written:
            self._dropped_position = self._store.append_state(written)
        del self._sessions[session.client_id]

    def _next_epoch(self) -> int:
        self._epochs += 1
        return (self._store.epoch << 32) | self._epochs


def describe(session: ClientSession, previous_epoch: int, *, present: bool) -> SessionOpened:
    """The answer to a SESSION_OPEN; `previous_epoch` is the one the session had before."""
    if not present:
        return SessionOpened(False, session.epoch, [], [], previous_epoch, expiry_s=session.expiry_s)
    ends = session.exact_below or {}
    exact = [InflightEntry(packet_id, *entry, qos=2) for packet_id, entry in (session.exact or {}).items()]
    return SessionOpened(
        present=True,
        epoch=session.epoch,
        subscriptions=[
            SessionSubscription(
                filter=topic_filter,
                qos=item.qos,
                queue_id=item.queue_id,
                offset=session.offsets.get(item.queue_id, 0),
                options=item.options,
                subscription_id=item.subscription_id,
                exact_from=item.exact_from,
                exact_below=ends.get(item.queue_id, 0),
                before=session.offsets.get(item.queue_id | HISTORY_BIT),
            )
            for topic_filter, item in session.subscriptions.items()
        ],
        inflight=[*[InflightEntry(*entry) for entry in session.inflight], *exact],
        previous_epoch=previous_epoch,
        received=session.received_ids(),
        expiry_s=session.expiry_s,
    )
