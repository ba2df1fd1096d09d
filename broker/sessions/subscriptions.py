"""The subscriptions of a session: which queue a filter is, where it starts, what is written and given back.

A wildcard filter holds its light queue (`filters`), an exact topic uses the light queue of its name. A repeated
filter takes the new QoS, options and identifier; its place in the log stays [MQTT-3.8.4-3]. A filter that is not
granted gets the reason code of MQTT 5, and changes nothing.

A shared subscription holds the queue of its inner filter and a place in its group (`shared_groups`), which has the
offsets; the session has none.

Invariant: queue, subscription and start offset are taken in one call, so no message falls between them; `subscribers`
knows every subscription. The records to write are added to `changes`; the caller writes them with the session's. Loop
thread only.

A subscription that wants messages from before it begins lower in its queue (`start_offset`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from broker.sessions.client_session import ClientSession, Subscription, offset_key, pack_offset
from broker.store.state import state_kinds
from broker.store.state.state_kinds import StateChange
from broker.subscriptions.filters import Unlimited
from remoting.protocol.bodies.session_body import (
    FAILURE,
    HISTORY_BIT,
    FilterRequest,
    HistoryStart,
    SubscribeResult,
    pack_before,
)
from remoting.protocol.errors import Refused
from remoting.protocol.records import names, topics
from remoting.protocol.records.topics import inner_filter, share_of, validate_subscription
from remoting.server.authorizer import ANONYMOUS
from runtime.logs import get_logger

if TYPE_CHECKING:
    from broker.shared.groups import SharedGroups
    from broker.store.log_store import LogStore
    from broker.subscriptions.filters import Filters, Subscribers

LOG = get_logger("broker.subscriptions")

FILTERS_BYTES_MAX = 1024 * 1024
"""Bytes of all filters of a session, which are one record; one more is refused as one too many."""

NOT_SUPPORTED = 0x83
NOT_VALID = 0x8F
QUOTA = 0x97


class ExactTopics(Protocol):
    """Opens the light queues of exact topics that are subscribed to."""

    def subscribe(self, wanted: Iterable[tuple[bytes, str]], /) -> None:
        """Make the missing ones of these queues, as (name, user), by one record; none beyond a limit."""
        ...

    def subscribed(self, name: bytes, user: str, /) -> int:
        """Return the queue `name`. Refused: it would be one too many of the user."""
        ...


class SubscriptionBook:
    """Adds and removes subscriptions."""

    def __init__(
        self,
        store: LogStore,
        filters: Filters,
        shared: SharedGroups,
        subscribers: Subscribers,
        *,
        subscriptions_max: int,
        filters_max: int,
    ) -> None:
        """`subscriptions_max` of one session, of which `filters_max` with wildcards."""
        self._store = store
        self._shared = shared
        self._filters = filters
        self._subscriptions_max = subscriptions_max
        self._filters_max = filters_max
        self.subscribers = subscribers
        self.exact: ExactTopics = Unlimited(store)

    def restore(self, session: ClientSession) -> None:
        """A session was read from the log: it holds its filters."""
        for topic_filter, subscription in session.subscriptions.items():
            inner = inner_filter(topic_filter)
            session.filters_bytes += len(topic_filter.encode())
            self.subscribers.add(session.client_id, subscription.queue_id, subscription.options)
            if topics.is_wildcard(inner):
                self._filters.acquire(inner.encode(), session.user)
                session.wildcards += 1
            if inner is not topic_filter:
                self._shared.join(topic_filter, session.client_id, subscription.queue_id)

    def subscribe(self, session: ClientSession, wanted: FilterRequest, changes: list[StateChange]) -> SubscribeResult:
        """Add or change one subscription."""
        known = session.subscriptions.get(wanted.filter)
        if known is not None:
            return self._again(session, known, wanted, changes)
        refusal = self._refusal(session, wanted)
        if refusal:
            return _refused(refusal)
        try:
            queue_id = self._queue_of(session, inner_filter(wanted.filter))
        except Refused as error:
            LOG.info("filter_refused", client_id=session.client_id, filter=wanted.filter, reason=error.remark)
            return _refused(QUOTA)
        offset = live = self._store.reading.next_offset(queue_id)
        is_shared = share_of(wanted.filter) is not None
        if is_shared:
            self._shared.join(wanted.filter, session.client_id, queue_id)
        session.filters_bytes += len(wanted.filter.encode())
        session.subscriptions[wanted.filter] = Subscription(
            wanted.qos, queue_id, wanted.options, wanted.subscription_id
        )
        self.subscribers.add(session.client_id, queue_id, wanted.options)
        if is_shared:
            return SubscribeResult(wanted.qos, queue_id, offset)
        if wanted.history is not None:
            return self._begin_early(session, wanted, queue_id, live, changes)
        self._begin(session, queue_id, offset, changes)
        return SubscribeResult(wanted.qos, queue_id, offset, live=live)

    def _begin_early(
        self, session: ClientSession, wanted: FilterRequest, queue_id: int, live: int, changes: list[StateChange]
    ) -> SubscribeResult:
        assert wanted.history is not None
        offset = start_offset(self._store, queue_id, wanted.history, live)
        self._begin(session, queue_id, offset, changes)
        before = None
        if topics.is_wildcard(wanted.filter):
            before = place_before(self._store, queue_id, wanted.history, offset, live)
        if before is not None:
            self._begin(session, queue_id | HISTORY_BIT, before, changes)
        else:
            self._drop_offset(session, queue_id | HISTORY_BIT, changes)
        return SubscribeResult(wanted.qos, queue_id, offset, live=live, before=before)

    def _refusal(self, session: ClientSession, wanted: FilterRequest) -> int:
        if validate_subscription(wanted.filter) is not None:
            return NOT_VALID
        if wanted.history is not None and share_of(wanted.filter) is not None:
            return NOT_SUPPORTED  # a group has one place for all its members
        if len(session.subscriptions) >= self._subscriptions_max:
            return QUOTA
        if session.filters_bytes + len(wanted.filter.encode()) > FILTERS_BYTES_MAX:
            return QUOTA
        return QUOTA if session.wildcards >= self._filters_max and topics.is_wildcard(wanted.filter) else 0

    def _again(
        self, session: ClientSession, known: Subscription, wanted: FilterRequest, changes: list[StateChange]
    ) -> SubscribeResult:
        """Renew the subscription of a filter; a requested start of history sets its place in the log."""
        queue_id = known.queue_id
        live = self._store.reading.next_offset(queue_id)
        if known.qos != wanted.qos or wanted.history is not None:
            known.qos, known.exact_from = wanted.qos, live
        self.subscribers.change(session.client_id, queue_id, known.options, wanted.options)
        known.options, known.subscription_id = wanted.options, wanted.subscription_id
        if wanted.history is None:
            return SubscribeResult(wanted.qos, queue_id, session.offsets.get(queue_id, live), existed=True, live=live)
        if share_of(wanted.filter) is not None:
            return _refused(NOT_SUPPORTED)
        session.inflight = [entry for entry in session.inflight if entry[1] & ~HISTORY_BIT != queue_id]
        result = self._begin_early(session, wanted, queue_id, live, changes)
        result.existed = True
        return result

    @staticmethod
    def _begin(session: ClientSession, queue_id: int, offset: int, changes: list[StateChange]) -> None:
        if session.durable:
            session.offsets[queue_id] = offset
            key = offset_key(session.client_id, queue_id)
            changes.append(StateChange(state_kinds.SESSION_OFFSET, key, pack_offset(offset)))

    def forget(
        self,
        session: ClientSession,
        topic_filter: str,
        subscription: Subscription,
        now_ms: int,
        changes: list[StateChange],
        *,
        lost: bool = False,
    ) -> None:
        """A subscription has been taken out, or `lost` with its proxy: give back what it held."""
        inner = inner_filter(topic_filter)
        session.filters_bytes -= len(topic_filter.encode())
        self.subscribers.remove(session.client_id, subscription.queue_id, subscription.options)
        if topics.is_wildcard(inner):
            self._filters.release(inner.encode(), now_ms, lost=lost)
            session.wildcards -= 1
        if inner is not topic_filter:
            self._shared.release(topic_filter, session.client_id)
            return
        if session.exact_below is not None:
            session.exact_below.pop(subscription.queue_id, None)
        for queue_id in (subscription.queue_id, subscription.queue_id | HISTORY_BIT):
            self._drop_offset(session, queue_id, changes)

    def _drop_offset(self, session: ClientSession, queue_id: int, changes: list[StateChange]) -> None:
        if not session.durable:
            return
        session.offsets.pop(queue_id, None)
        key = offset_key(session.client_id, queue_id)
        if self._store.state.get(state_kinds.SESSION_OFFSET, key) is not None:
            changes.append(StateChange(state_kinds.SESSION_OFFSET, key, None))

    def _queue_of(self, session: ClientSession, topic_filter: str) -> int:
        encoded = topic_filter.encode()
        if topics.is_wildcard(topic_filter):
            queue_id = self._filters.acquire(encoded, session.user)
            session.wildcards += 1
            return queue_id
        return self.exact.subscribed(names.light_queue_name(encoded), session.user or ANONYMOUS)


def _refused(code: int) -> SubscribeResult:
    assert code >= FAILURE, code
    return SubscribeResult(code=code, queue_id=0, offset=0)


def start_offset(store: LogStore, queue_id: int, wish: HistoryStart, live: int) -> int:
    """The offset of the first message wanted; `live`, the queue's end, when there is none."""
    low = store.reading.bounds(queue_id)[0]
    if wish.from_ms is not None:
        return store.reading.search_time(queue_id, wish.from_ms)
    if wish.from_offset is not None:
        return min(max(low, wish.from_offset), live)
    return max(low, live - (wish.last or 0))


def place_before(store: LogStore, queue_id: int, wish: HistoryStart, start: int, live: int) -> int | None:
    """The place of the requested history before a wildcard filter's queue begins; None when there is none.

    A queue that has lost its first messages to retention has older ones nowhere.
    """
    low = store.reading.bounds(queue_id)[0]
    if start > 0 or low > 0 or (wish.last is not None and wish.last <= live):
        return None
    return pack_before(HistoryStart(last=wish.last - live) if wish.last is not None else wish)
