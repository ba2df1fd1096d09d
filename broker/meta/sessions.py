"""MQTT sessions of the whole cluster: who owns a client id, what it subscribed to, how far it has read.

Rules (MQTT 3.1.1 §3.1.2.4, §3.1.4, §4.1; the epoch is ours):
- One client id, one session. Opening it raises its epoch and fences the previous owner; what carries an older epoch is
  refused from then on.
- `present` is true exactly when a durable session with that id existed and clean was not asked for.
- A session belongs to the user that opened it; another user may neither resume it, take it over nor clean it away.
- Wildcard queue, subscription and start offset are in the log before a subscription is answered; they are captured in
  one call, so no message falls between them.
- A clean session lives in memory and dies with its connection or its proxy. A durable one is a SESSION record and dies
  by expiry, counted from its close.

Every method that changes or shows state returns the log position its answer must wait for. Loop thread only.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.meta.session_record import (
    Session,
    Subscription,
    load_session,
    offset_key,
    pack_offset,
    split_offset_key,
    unpack_offset,
)
from broker.store import state_kinds
from broker.store.errors import StoreFull
from broker.store.state_log import StateChange
from remoting.protocol import names, topics
from remoting.protocol.codes import ResponseCode
from remoting.protocol.errors import Refused
from remoting.protocol.session_body import (
    FAILURE,
    InflightEntry,
    SessionClose,
    SessionOpen,
    SessionOpened,
    SessionSubscription,
    Subscribe,
    SubscribeResult,
    Unsubscribe,
)

if TYPE_CHECKING:
    from broker.meta.filters import Filters
    from broker.store.log_store import LogStore


@dataclass(slots=True)
class Opened:
    """Answer to SESSION_OPEN: what to resume, whom to fence, and what to wait for."""

    reply: SessionOpened
    fenced: tuple[object, int] | None
    position: int


class Sessions:
    """Door to all sessions of this broker group."""

    def __init__(
        self,
        store: LogStore,
        filters: Filters,
        *,
        default_expiry_s: int,
        sessions_max: int,
        subscriptions_max: int,
        now_ms: int,
    ) -> None:
        self._store = store
        self._filters = filters
        self._default_expiry_s = default_expiry_s
        self._sessions_max = sessions_max
        self._subscriptions_max = subscriptions_max
        self._sessions: dict[str, Session] = {}
        self._owned: dict[object, set[str]] = {}
        self._due: list[tuple[int, str]] = []
        self._epochs = 0
        self.expired = 0
        self.taken_over = 0
        self.offsets_fenced = 0
        self._load(now_ms)

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def connected(self) -> int:
        """Sessions whose client is connected through some proxy."""
        return sum(map(len, self._owned.values()))

    def get(self, client_id: str) -> Session | None:
        """The session of a client id, or None."""
        return self._sessions.get(client_id)

    # ---- open and close

    def open(self, request: SessionOpen, owner: object, now_ms: int) -> Opened:
        """Take the client id for `owner` and say what to resume.

        Raises:
            Refused: NO_PERMISSION when it belongs to another user, SYSTEM_BUSY when `sessions_max` is reached.
        """
        known = self._sessions.get(request.client_id)
        if known is not None and known.user != request.user:
            raise Refused(ResponseCode.NO_PERMISSION, "the session of this client id belongs to another user")
        if known is None and len(self._sessions) >= self._sessions_max:
            raise Refused(ResponseCode.SYSTEM_BUSY, f"sessions_max {self._sessions_max} sessions exist already")
        fenced = self._fence(known)
        present = known is not None and known.durable and not request.clean
        if known is not None and not present:
            self._drop(known, now_ms)
        session = known if present and known is not None else self._create(request)
        previous_epoch, session.epoch = session.epoch, self._next_epoch()
        session.expiry_s = request.expiry_s if request.expiry_s > 0 else self._default_expiry_s
        session.closed_ms = 0
        session.owner = owner
        self._owned.setdefault(owner, set()).add(session.client_id)
        if present:
            self._save_if_room(session)
        elif session.durable:
            self._save_first(session)
        return Opened(self._describe(session, previous_epoch, present=present), fenced, self._store.end_position)

    def close(self, request: SessionClose, now_ms: int) -> int:
        """The connection is gone: keep offsets and in-flight list of a durable session, forget a clean one."""
        session = self.require(request.client_id, request.epoch)
        self._disown(session)
        if not request.durable:
            self._drop(session, now_ms)
            return self._store.end_position
        session.durable = True
        session.closed_ms = now_ms
        session.inflight = [(entry.packet_id, entry.queue_id, entry.offset) for entry in request.inflight]
        changes = [self._advance(session, queue_id, offset) for queue_id, offset in request.offsets]
        self._save_if_room(session, [change for change in changes if change is not None])
        self._schedule(session)
        return session.position

    def owner_gone(self, owner: object, now_ms: int) -> int:
        """A proxy's connection is gone: its clean sessions end, its durable ones are closed; returns how many."""
        gone = self._owned.pop(owner, set())
        for client_id in gone:
            session = self._sessions[client_id]
            session.owner = None
            session.closed_ms = now_ms
            if session.durable:
                self._schedule(session)
            else:
                self._drop(session, now_ms)
        return len(gone)

    def require(self, client_id: str, epoch: int) -> Session:
        """The connected session of that epoch; Refused(ILLEGAL_OPERATION) when it was fenced or does not exist."""
        session = self._sessions.get(client_id)
        if session is None or session.epoch != epoch or session.owner is None:
            raise Refused(ResponseCode.ILLEGAL_OPERATION, f"session of epoch {epoch} is fenced or closed")
        return session

    # ---- subscriptions

    def subscribe(self, request: Subscribe) -> tuple[list[SubscribeResult], int]:
        """Add or change subscriptions; a filter that is not granted gets code 0x80 and no queue."""
        session = self.require(request.client_id, request.epoch)
        session.durable = session.durable or request.durable
        results = []
        changes: list[StateChange] = []
        for topic_filter, qos in request.filters:
            results.append(self._subscribe_one(session, topic_filter, qos, changes))
        if session.durable:
            self._save(session, changes)
        return results, self._store.end_position

    def unsubscribe(self, request: Unsubscribe, now_ms: int) -> tuple[list[bool], int]:
        """Remove subscriptions; the list says for each filter whether there was one."""
        session = self.require(request.client_id, request.epoch)
        found = []
        changes: list[StateChange] = []
        for topic_filter in request.filters:
            subscription = session.subscriptions.pop(topic_filter, None)
            found.append(subscription is not None)
            if subscription is not None:
                self._forget(session, topic_filter, subscription, now_ms, changes)
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

    # ---- expiry

    def expire(self, now_ms: int) -> int:
        """End the durable sessions whose expiry has come; returns how many."""
        ended = 0
        while self._due and self._due[0][0] <= now_ms:
            _due_ms, client_id = heapq.heappop(self._due)
            session = self._sessions.get(client_id)
            if session is None or session.owner is not None or self._due_ms(session) > now_ms:
                continue
            self._drop(session, now_ms)
            ended += 1
        self.expired += ended
        return ended

    # ---- inner parts

    def _load(self, now_ms: int) -> None:
        state = self._store.state
        for key, (value, position) in list(state.items(state_kinds.SESSION)):
            client_id = bytes(key).decode()
            session = load_session(client_id, value, epoch=self._next_epoch(), now_ms=now_ms)
            session.position = position
            self._sessions[client_id] = session
            for topic_filter in session.subscriptions:
                if topics.is_wildcard(topic_filter):
                    self._filters.acquire(topic_filter.encode())
            self._schedule(session)
        for key, (value, position) in list(state.items(state_kinds.SESSION_OFFSET)):
            client_id, queue_id = split_offset_key(bytes(key))
            owner = self._sessions.get(client_id)
            if owner is None:
                continue
            offset = unpack_offset(value)
            owner.offsets[queue_id] = offset
            if position > owner.position:  # acknowledged after the list was written
                owner.inflight = [e for e in owner.inflight if e[1] != queue_id or e[2] >= offset]

    def _create(self, request: SessionOpen) -> Session:
        session = Session(
            client_id=request.client_id,
            user=request.user,
            durable=not request.clean,
            expiry_s=request.expiry_s,
            epoch=0,
        )
        self._sessions[request.client_id] = session
        return session

    def _fence(self, session: Session | None) -> tuple[object, int] | None:
        if session is None or session.owner is None:
            return None
        fenced = (session.owner, session.epoch)
        self._disown(session)
        self.taken_over += 1
        return fenced

    def _disown(self, session: Session) -> None:
        owned = self._owned.get(session.owner)
        if owned is not None:
            owned.discard(session.client_id)
            if not owned:
                del self._owned[session.owner]
        session.owner = None

    def _describe(self, session: Session, previous_epoch: int, *, present: bool) -> SessionOpened:
        return SessionOpened(
            present=present,
            epoch=session.epoch,
            subscriptions=[
                SessionSubscription(
                    filter=topic_filter,
                    qos=item.qos,
                    queue_id=item.queue_id,
                    offset=session.offsets.get(item.queue_id, 0),
                )
                for topic_filter, item in session.subscriptions.items()
            ],
            inflight=[InflightEntry(*entry) for entry in session.inflight],
            previous_epoch=previous_epoch,
        )

    def _subscribe_one(
        self, session: Session, topic_filter: str, qos: int, changes: list[StateChange]
    ) -> SubscribeResult:
        known = session.subscriptions.get(topic_filter)
        if known is not None:
            known.qos = qos
            return SubscribeResult(code=qos, queue_id=known.queue_id, offset=session.offsets[known.queue_id])
        full = len(session.subscriptions) >= self._subscriptions_max
        if full or topics.validate_filter(topic_filter) is not None:
            return SubscribeResult(code=FAILURE, queue_id=0, offset=0)
        try:
            queue_id = self._queue_of(topic_filter)
        except Refused:
            return SubscribeResult(code=FAILURE, queue_id=0, offset=0)
        offset = self._store.next_offset(queue_id)
        session.subscriptions[topic_filter] = Subscription(qos, queue_id)
        session.offsets[queue_id] = offset
        changes.append(self._offset_change(session, queue_id, offset))
        return SubscribeResult(code=qos, queue_id=queue_id, offset=offset)

    def _queue_of(self, topic_filter: str) -> int:
        encoded = topic_filter.encode()
        if topics.is_wildcard(topic_filter):
            return self._filters.acquire(encoded)
        return self._store.open_queue(names.light_queue_name(encoded))

    def _forget(
        self, session: Session, topic_filter: str, subscription: Subscription, now_ms: int, changes: list[StateChange]
    ) -> None:
        if topics.is_wildcard(topic_filter):
            self._filters.release(topic_filter.encode(), now_ms)
        session.offsets.pop(subscription.queue_id, None)
        key = offset_key(session.client_id, subscription.queue_id)
        if self._store.state.get(state_kinds.SESSION_OFFSET, key) is not None:
            changes.append(StateChange(state_kinds.SESSION_OFFSET, key, None))

    def _advance(self, session: Session, queue_id: int, offset: int) -> StateChange | None:
        if offset <= session.offsets.get(queue_id, offset):
            return None
        session.offsets[queue_id] = offset
        return self._offset_change(session, queue_id, offset)

    @staticmethod
    def _offset_change(session: Session, queue_id: int, offset: int) -> StateChange:
        return StateChange(state_kinds.SESSION_OFFSET, offset_key(session.client_id, queue_id), pack_offset(offset))

    def _save(self, session: Session, changes: Sequence[StateChange] = ()) -> None:
        record = StateChange(state_kinds.SESSION, session.client_id.encode(), session.record())
        session.position = self._store.append_state([record, *changes])

    def _save_first(self, session: Session) -> None:
        """Write a new session; it does not exist when it cannot be written."""
        try:
            self._save(session)
        except StoreFull:
            self._disown(session)
            del self._sessions[session.client_id]
            raise

    def _save_if_room(self, session: Session, changes: Sequence[StateChange] = ()) -> None:
        """Write a session that is stored already; a full disk keeps nobody from reading.

        What is not written is only known until the broker stops: some acknowledged messages are sent again then.
        """
        with suppress(StoreFull):
            self._save(session, changes)

    def _drop(self, session: Session, now_ms: int) -> None:
        changes: list[StateChange] = []
        for topic_filter, subscription in session.subscriptions.items():
            self._forget(session, topic_filter, subscription, now_ms, changes)
        key = session.client_id.encode()
        if self._store.state.get(state_kinds.SESSION, key) is not None:
            changes.append(StateChange(state_kinds.SESSION, key, None))
        if changes:
            self._store.append_state(changes)
        del self._sessions[session.client_id]

    def _schedule(self, session: Session) -> None:
        heapq.heappush(self._due, (self._due_ms(session), session.client_id))

    @staticmethod
    def _due_ms(session: Session) -> int:
        return session.closed_ms + session.expiry_s * 1_000

    def _next_epoch(self) -> int:
        self._epochs += 1
        return (self._store.epoch << 32) | self._epochs
