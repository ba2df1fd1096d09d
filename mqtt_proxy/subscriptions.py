"""SUBSCRIBE and UNSUBSCRIBE of one session.

The broker stores queue, subscription and start offset before it answers, and captures the retained messages at the same
moment; the SUBACK follows that answer, so a subscription is effective before its SUBACK and nothing in between is
missed. A filter subscribed again gets its new QoS and its retained messages; its position in the log stays
[MQTT-3.8.4-3]. Filters that may not be read, or are above a limit of the broker, get a reason code (0x80 in 3.1.1) and
change nothing else.
Invariant: `by_filter` equals the broker's subscriptions of this session. Loop rule: on the loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mqtt_proxy.access.permissions import REFUSED, Permissions
from mqtt_proxy.delivery.delivery import Delivery
from mqtt_proxy.delivery.source import ExactRange, Source
from mqtt_proxy.grants import Grant, grant_of
from mqtt_proxy.history import (
    HISTORY_PREFIX,
    HistoryRun,
    NotUnderstood,
    plain_filter,
    start_of_filter,
    start_of_user,
)
from mqtt_proxy.history_steps import HistorySteps
from mqtt_proxy.link import Link
from mqtt_proxy.listening.connection import ClientConnection
from mqtt_proxy.metrics import ProxyMetrics
from mqtt_proxy.mqtt.codec.reason_codes import ReasonCode
from mqtt_proxy.mqtt.session.events import SubscribeRequested, SubscriptionRequest
from mqtt_proxy.quotas import Quotas
from mqtt_proxy.retained import RetainedRun
from mqtt_proxy.shared import SharedSource
from mqtt_proxy.sys_topics import PREFIX as SYS_PREFIX
from mqtt_proxy.sys_topics import SysFollower, SysTree
from remoting.protocol.bodies.session_body import (
    FAILURE,
    FINISHED,
    HISTORY_BIT,
    FilterRequest,
    HistoryStart,
    SessionSubscription,
    Subscribed,
    SubscribeRequest,
    Unsubscribed,
    UnsubscribeRequest,
    decode,
    encode,
)
from remoting.protocol.errors import LocalMisuse, Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.records.topics import inner_filter, share_of, validate_subscription
from runtime.logs import get_logger

LOG = get_logger("proxy.subscriptions")

RETAIN_HANDLING = 3 << 2
"""Bits of `FilterRequest.options` that say when to send retained messages: 0 at every SUBSCRIBE, 1 at the first."""
RETAIN_HANDLING_NEVER = 2 << 2

_REFUSALS = {
    "invalid": ReasonCode.TOPIC_FILTER_INVALID,
    "too_wide": ReasonCode.TOPIC_FILTER_INVALID,
    "not_authorized": ReasonCode.NOT_AUTHORIZED,
}
"""Why a filter is refused -> reason code in the SUBACK."""


def _options(request: SubscriptionRequest) -> int:
    return request.no_local | request.retain_as_published << 1 | request.retain_handling << 2


@dataclass(frozen=True, slots=True)
class SubscriptionParts:
    """Shared by the subscriptions of all sessions."""

    link: Link
    history: HistorySteps
    metrics: ProxyMetrics
    quotas: Quotas
    sys_tree: SysTree


class PendingSubscribe:
    """A SUBSCRIBE in progress."""

    __slots__ = ("codes", "moved", "packet_id", "places", "request")

    def __init__(self, packet_id: int) -> None:
        self.packet_id = packet_id
        self.codes: list[int] = []
        """Per filter, as in SUBACK; for those sent to the broker, the highest QoS allowed."""
        self.places: list[int] = []
        """Which filters are sent to the broker."""
        self.request: SubscribeRequest | None = None
        """None when there is none of these."""
        self.moved: dict[str, Source] = {}
        """Sources that start again with history, in their previous state."""


class Subscriptions:
    """The filters of one session and their sources."""

    __slots__ = (
        "_client_id", "_delivery", "_durable", "_ended", "_fresh_sys", "_may", "_parts", "_sys", "_wire",
        "by_filter", "epoch",
    )  # fmt: skip

    def __init__(
        self,
        client_id: str,
        epoch: int,
        parts: SubscriptionParts,
        delivery: Delivery,
        wire: ClientConnection,
        may: Permissions,
        *,
        durable: bool,
    ) -> None:
        self._client_id = client_id
        self._parts = parts
        self._delivery = delivery
        self._durable = durable
        self._may = may
        self._wire: ClientConnection | None = wire
        self._sys: SysFollower | None = None
        self._ended = False
        self._fresh_sys: dict[str, bool] | None = None
        """`$SYS` filters to be followed once SUBACK or CONNACK is sent -> whether their values are sent then."""
        self.epoch = epoch
        self.by_filter: dict[str, Source | SharedSource] = {}

    def resume(self, stored: Sequence[SessionSubscription], cursors: Mapping[int, int]) -> None:
        """All subscriptions of a stored session continue at these positions."""
        for one in stored:
            if self._restore_shared(one, one.queue_id, one.qos) is not None:
                continue
            source = self._restore(one.filter, one.queue_id, self._terms(one, one.qos), one.offset)
            source.cursor = cursors[one.queue_id]
            if one.exact_below:
                source.exact = ExactRange(one.exact_from, one.exact_below)
            if one.before is not None and one.before != FINISHED:
                self.begin_before(source, cursors.get(one.queue_id | HISTORY_BIT, one.before))

    def _terms(self, wanted: SessionSubscription | FilterRequest, qos: int, *, history: bool = True) -> Grant:
        """The grant of a subscription; `history`: its deliveries may be messages from before it."""
        judged = self._may.is_partial(wanted.filter, history=history)
        return grant_of(qos, wanted.options, wanted.subscription_id, judged)

    def _restore(self, topic_filter: str, queue_id: int, grant: Grant, cursor: int) -> Source:
        """A new or stored subscription continues at `cursor`."""
        source = self._delivery.add(topic_filter, queue_id, grant, cursor)
        self.by_filter[topic_filter] = source
        if topic_filter.startswith(SYS_PREFIX):
            self._follow_sys(topic_filter, with_values=True)
        return source

    def _follow_sys(self, topic_filter: str, *, with_values: bool) -> None:
        if self._fresh_sys is None:
            self._fresh_sys = {}
        self._fresh_sys[topic_filter] = with_values

    def ask(self, event: SubscribeRequested, qos_allowed: Callable[[str], int]) -> PendingSubscribe:
        """The broker's request for a SUBSCRIBE; `granted` takes the answer.

        `qos_allowed` returns the highest QoS at which a filter may be read, and less than 0 when it may not.
        """
        asked = PendingSubscribe(event.packet_id)
        wanted = []
        for index, one in enumerate(event.filters):
            start = self._history_start(event, one.filter)
            if isinstance(start, NotUnderstood):
                asked.codes.append(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR)
                continue
            topic_filter = plain_filter(one.filter)
            code = self._admit(topic_filter, start, qos_allowed)
            asked.codes.append(code)
            if code < FAILURE:
                asked.places.append(index)
                wanted.append(
                    FilterRequest(topic_filter, min(one.qos, code), _options(one), event.subscription_id, start)
                )
        if wanted:
            asked.moved = self._set_aside(wanted)
            asked.request = SubscribeRequest(self._client_id, self.epoch, self._durable, wanted)
        return asked

    def granted(self, asked: PendingSubscribe, reply: Subscribed) -> list[tuple[Source, list[int]]]:
        """The broker has answered: `asked.codes` are complete; retained positions per source, for `begin_retained`
        once the SUBACK is out.
        """
        if self._ended:  # the client disconnected before the answer; nothing would ever unfollow these queues
            return []
        assert asked.request is not None
        retained = dict(reply.retained)
        runs = []
        for order, (index, result) in enumerate(zip(asked.places, reply.results, strict=True)):
            wanted = asked.request.filters[order]
            asked.codes[index] = result.code
            if result.code >= FAILURE:
                self._count_refusal(wanted.filter, result.code)
                continue
            source = self._granted(wanted, result.queue_id, result.code, result.offset)
            asked.moved.pop(wanted.filter, None)
            if wanted.history is not None and isinstance(source, Source):
                source.live_from = result.live  # retained messages are among its history
                if result.before is not None:
                    self.begin_before(source, result.before)
            elif retained.get(order) and isinstance(source, Source):
                runs.append((source, retained[order]))
        for topic_filter, old in asked.moved.items():  # not granted again: it continues
            grant = old.grant.checked(self._may.is_partial(topic_filter, history=True))
            self._restore(topic_filter, old.queue_id, grant, old.lowest())
        return runs

    def begin_before(self, source: Source, place: int) -> None:
        """Send the messages stored before the source's queue, from this position on."""
        wake, refused = self._delivery.wake, self._history_refused
        source.history = HistoryRun(self._parts.history, source.filter, source.queue_id, place, wake, refused)

    def _history_refused(self) -> None:
        self._parts.metrics.deliveries.skipped("history_refused").value += 1

    def _set_aside(self, wanted: Sequence[FilterRequest]) -> dict[str, Source]:
        """Stop sources that start again with history, so that no offset of their former position is committed any
        more."""
        moved: dict[str, Source] = {}
        for one in wanted:
            source = self.by_filter.get(one.filter)
            if one.history is not None and isinstance(source, Source):
                moved[one.filter] = source
                del self.by_filter[one.filter]
                self._delivery.remove(source)
        return moved

    def _history_start(self, event: SubscribeRequested, topic_filter: str) -> HistoryStart | NotUnderstood | None:
        """The history with which a filter starts."""
        try:
            start = start_of_filter(topic_filter) or start_of_user(event.user)
            if start is not None and share_of(topic_filter) is not None:
                raise NotUnderstood("a shared subscription has one place for all its members")
            return start
        except NotUnderstood as wrong:
            self._parts.metrics.subscriptions.refused.child("history").value += 1
            LOG.info("history_not_understood", client_id=self._client_id, filter=topic_filter, reason=str(wrong))
            return wrong

    def begin_retained(self, runs: Sequence[tuple[Source, list[int]]]) -> None:
        """Send the retained messages of fresh subscriptions, and the present `$SYS` values of fresh ones of these."""
        for topic_filter, with_values in (self._fresh_sys or {}).items():
            self._sys = self._sys or self._sys_follower()
            identifier = self.by_filter[topic_filter].grant.subscription_id
            self._sys.follow(topic_filter, identifier, with_values=with_values)
        self._fresh_sys = None
        for source, positions in runs:
            if source.retained is None:
                source.retained = RetainedRun(self._parts.link, positions, self._delivery.wake)
            else:
                source.retained.extend(positions)
        self._delivery.wake()

    async def unsubscribe(self, filters: Sequence[str]) -> list[int]:
        """Unsubscribe; a reason code per filter, unknown ones are no error [MQTT-3.10.4-5]. Raises Refused or
        LinkDownError.
        """
        filters = [plain_filter(topic_filter) for topic_filter in filters]
        for topic_filter in filters:  # what waits goes to other members; what is under way stays
            if isinstance(self.by_filter.get(topic_filter), SharedSource):
                self.drop([topic_filter])
        request = UnsubscribeRequest(self._client_id, self.epoch, self._durable, list(filters))
        reply = decode(Unsubscribed, await self._parts.link.request(RequestCode.UNSUBSCRIBE, encode(request)))
        self.drop(filters)
        return [ReasonCode.SUCCESS if found else ReasonCode.NO_SUBSCRIPTION_EXISTED for found in reply.found]

    def let_go(self) -> None:
        """The session has ended: follow nothing any more, and keep no reference to its client."""
        self._ended = True
        self._wire = None

    def _sys_follower(self) -> SysFollower:
        """Created when a `$SYS` filter is subscribed: few sessions have one."""
        wire, delivery = self._wire, self._delivery
        if wire is None:
            raise LocalMisuse("the session has ended")
        return self._parts.sys_tree.follower(wire.session, wire.flush, lambda: delivery.writable, self._may.may_read)

    def judge_all(self) -> None:
        """The rules have changed: deliver nothing unchecked until each filter has been checked again."""
        for source in self.by_filter.values():
            source.grant = source.grant.checked(True)

    def drop(self, filters: Sequence[str]) -> None:
        """Deliver nothing from these any more."""
        for topic_filter in filters:
            source = self.by_filter.pop(topic_filter, None)
            if source is not None:
                self._end(source)
                if self._sys is not None:
                    self._sys.unfollow(topic_filter)
            if self._fresh_sys is not None:
                self._fresh_sys.pop(topic_filter, None)

    async def subscribe_again(self) -> None:
        """After a loss of the broker: subscribe all filters again; a queue that is still the same is read on.

        Raises:
            Refused: one is not granted any more; the connection is to end, so that its client subscribes and learns it.
            LinkDownError: the broker is lost again.
        """
        grants = {topic_filter: source.grant for topic_filter, source in self.by_filter.items()}
        filters = [
            FilterRequest(topic_filter, grant.qos, grant.options | RETAIN_HANDLING_NEVER, grant.subscription_id)
            for topic_filter, grant in grants.items()
        ]
        if not filters:
            return
        request = SubscribeRequest(self._client_id, self.epoch, self._durable, filters)
        reply = decode(Subscribed, await self._parts.link.request(RequestCode.SUBSCRIBE, encode(request)))
        for wanted, result in zip(filters, reply.results, strict=True):
            if result.code >= FAILURE:
                self._count_refusal(wanted.filter, result.code)
                raise Refused(ResponseCode.SYSTEM_BUSY, f"the filter {wanted.filter} is not granted any more")
            if not self._ended:
                self._granted(wanted, result.queue_id, result.code, result.offset)

    def _restore_shared(
        self, stored: SessionSubscription | FilterRequest, queue_id: int, qos: int
    ) -> SharedSource | None:
        """A stored or new subscription joins its group at the granted `qos`; None when it is not a shared one."""
        if share_of(stored.filter) is None:
            return None
        grant = self._terms(stored, qos, history=False)
        source = self._delivery.join(stored.filter, queue_id, grant, self._client_id, self.epoch)
        self.by_filter[stored.filter] = source
        return source

    def rejoin(self) -> None:
        """The connection to the broker is back: join the groups again."""
        if self._delivery.memberships is not None:
            self._delivery.memberships.rejoin(self.epoch)

    def _end(self, source: Source | SharedSource) -> None:
        if isinstance(source, Source):
            self._delivery.remove(source)
        elif self._delivery.memberships is not None:
            self._delivery.memberships.remove(source)

    def _granted(self, wanted: FilterRequest, queue_id: int, qos: int, offset: int) -> Source | SharedSource:
        topic_filter = wanted.filter
        source = self.by_filter.get(topic_filter)
        if source is not None and source.queue_id == queue_id:
            source.grant = grant_of(qos, wanted.options, wanted.subscription_id, source.grant.judged)
            if topic_filter.startswith(SYS_PREFIX):
                self._follow_sys(topic_filter, with_values=not wanted.options & RETAIN_HANDLING)  # [MQTT-3.8.4-3]
            return source
        if source is not None:
            self._end(source)
        shared = self._restore_shared(wanted, queue_id, qos)
        if shared is not None:
            return shared
        grant = self._terms(wanted, qos, history=wanted.history is not None)
        fresh = self._restore(topic_filter, queue_id, grant, offset)
        if self._fresh_sys is not None and topic_filter in self._fresh_sys:
            self._fresh_sys[topic_filter] = wanted.options & RETAIN_HANDLING != RETAIN_HANDLING_NEVER
        return fresh

    def _admit(self, topic_filter: str, start: HistoryStart | None, qos_allowed: Callable[[str], int]) -> int:
        """The highest QoS at which the filter may be subscribed to, or the reason code of its refusal."""
        reason, qos = "", REFUSED
        problem = validate_subscription(topic_filter) if topic_filter.startswith("$") else None
        if problem is not None:
            reason = "invalid"
        elif self._parts.quotas.filter_refused(inner_filter(topic_filter)):
            reason = "too_wide"
        elif (qos := qos_allowed(topic_filter if start is None else HISTORY_PREFIX + "/" + topic_filter)) == REFUSED:
            reason = "not_authorized"
        if not reason:
            return qos
        self._refused(topic_filter, reason, reason if problem is None else f"{reason}: {problem}")
        return _REFUSALS[reason]

    def _count_refusal(self, topic_filter: str, code: int) -> None:
        """The broker has refused a filter."""
        reason = "too_many" if code == ReasonCode.QUOTA_EXCEEDED else "broker"
        self._refused(topic_filter, reason, reason)

    def _refused(self, topic_filter: str, reason: str, detail: str) -> None:
        self._parts.metrics.subscriptions.refused.child(reason).value += 1
        LOG.info("subscription_refused", client_id=self._client_id, filter=topic_filter, reason=detail)
