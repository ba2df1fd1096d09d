"""Everything a request handler may use, built once per broker around one open store.

Handlers are functions of (broker, peer, command); this object is the `broker`. It owns no decision: it holds the views
of `broker.meta`, the waiting rooms of this room, and the few helpers that every handler needs, above all the one that
lets an answer wait for the confirm position. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from broker.api.access import Authorizer
from broker.api.append import Appender, refusal_of
from broker.api.delay_timer import DelayTimer
from broker.api.follow import Followers
from broker.api.handover import Handovers
from broker.api.history import HistoryRoom
from broker.api.long_poll import LongPolls
from broker.api.offset_gather import OffsetGather
from broker.api.shared import SESSION_ENDED, SharedRoom
from broker.api.stored_message import ipv4_host, origin_of
from broker.api.wills import WillRoom
from broker.meta.clients import Clients
from broker.meta.delay_wish import due_ms
from broker.meta.delayed import Delayed
from broker.meta.dispatch import Dispatcher
from broker.meta.filters import Filters
from broker.meta.group_traffic import GroupTraffic
from broker.meta.groups import Groups
from broker.meta.ledger import CommitRun, SinkLedger
from broker.meta.locks import QueueLocks
from broker.meta.offsets import GroupOffsets
from broker.meta.placement import Placement
from broker.meta.rates import Rates
from broker.meta.retained import Retained
from broker.meta.retained_expiry import RetainedExpiry
from broker.meta.retained_quota import RetainedQuota
from broker.meta.sessions import Sessions
from broker.meta.shared_groups import SharedGroups
from broker.meta.stages import Stages
from broker.meta.topic_retention import TopicRetention
from broker.meta.topics import Topics
from broker.metrics import BrokerMetrics
from broker.publication import Publication
from remoting.access.resources import of_topic
from remoting.batches.unpack import Unpacker
from remoting.protocol.codes import RequestCode
from remoting.protocol.commands import FLAG_ONEWAY, Command
from remoting.protocol.errors import LocalMisuse
from remoting.protocol.message_id import Host
from remoting.protocol.route_body import TopicRoute
from remoting.transport.contracts import Peer
from remoting.transport.direct import Said

if TYPE_CHECKING:
    from broker.config import BrokerConfig, LimitsConfig
    from broker.store.log_store import LogStore
    from broker.store.store_message import StoreMessage
    from runtime.clock import Clock
    from runtime.metrics import Registry

T = TypeVar("T")

_OWNER_ATTRIBUTE = "session owner"


class Broker:
    """The parts of one running broker that requests are answered from."""

    def __init__(self, config: BrokerConfig, store: LogStore, clock: Clock, registry: Registry, log: Any) -> None:
        now_ms = clock.now_ms()
        limits = config.limits
        self.config = config
        self.store = store
        self.clock = clock
        self.log = log
        self.started_ms = now_ms
        self.started_position = store.end_position
        self.host = "127.0.0.1"
        self.port = 0
        self.readers_address: Callable[[], str | None] = lambda: None
        """`host:port` at which reader processes answer RANGE_PULL right now; None where there are none."""
        self.origin = origin_of(config.cluster_name)
        self.find_route: Callable[[str], Awaitable[TopicRoute | None]] = _no_route
        """The route of a topic over all broker groups; None where no controller is configured."""
        self.metrics = BrokerMetrics(registry)
        self.metrics.watch_store(store)
        self.rates_in, self.rates_out = Rates(), Rates()
        """Of messages taken and messages given out."""
        self.group_traffic = GroupTraffic()
        self.authorizer = Authorizer()
        self._open_topics(limits)
        self._open_sessions(limits, now_ms)
        self._open_rooms(limits)

    def _open_topics(self, limits: LimitsConfig) -> None:
        """Where messages go: topics, filters, dispatch, placement."""
        config, store, now_ms = self.config, self.store, self.started_ms
        self.topics = Topics(store, topics_max=limits.topics_max)
        self.publication = Publication(wait_ms=config.registration_wait_ms, missed=self._unpublished)
        self.topic_retention = TopicRetention(store, self.topics)
        self.filters = Filters(
            store, expiry_ms=config.filter_expiry_s * 1_000, filters_max=limits.filters_max, now_ms=now_ms
        )
        self.dispatcher = Dispatcher(
            store,
            self.topics,
            self.filters,
            cached_topics_max=limits.cached_topics_max,
            queue_count=config.default_queue_count,
            auto_create=config.auto_create_topics,
        )
        self.placement = Placement(
            self.topics,
            self.dispatcher,
            queue_count=config.default_queue_count,
            auto_create=config.auto_create_topics,
            message_size_bytes_max=limits.message_size_bytes_max,
            properties_bytes_max=limits.properties_bytes_max,
        )

    def _open_sessions(self, limits: LimitsConfig, now_ms: int) -> None:
        """What is kept for clients: sessions, retained messages, offsets, groups, the sinks' ledger."""
        config, store = self.config, self.store
        self.shared_groups = SharedGroups(store, now_ms=now_ms)
        self.sessions = Sessions(
            store,
            self.filters,
            shared=self.shared_groups,
            expiry_s_max=config.session_expiry_s,
            will_grace_ms=config.proxy_grace_ms,
            sessions_max=limits.sessions_max,
            subscriptions_max=limits.subscriptions_per_session_max,
            now_ms=now_ms,
        )
        self.retained = Retained(store)
        self.retained_quota = RetainedQuota(
            store, self.retained, messages_max=limits.retained_messages_max, bytes_max=limits.retained_bytes_max
        )
        self.retained_expiry = RetainedExpiry(store, self.log, self.retained_quota.seen)
        self.placement.retained_expiry = lambda topic, expiry_s: self.retained_expiry.note(
            topic, expiry_s, self.clock.now_ms()
        )
        self.offsets = GroupOffsets(store)
        self.groups = Groups(store, self.topics)
        self.locks = QueueLocks()
        self.stages = Stages(
            store,
            expiry_ms=config.stage_expiry_s * 1_000,
            attempts_max=limits.stage_attempts_max,
            now_ms=now_ms,
        )
        self._open_delayed(limits, now_ms)
        self.ledger = SinkLedger(store, self.stages, self.placement, group_bytes_max=limits.commit_group_bytes_max)

    def _open_delayed(self, limits: LimitsConfig, now_ms: int) -> None:
        """Where messages wait for their time."""
        self.delayed = Delayed(
            self.store,
            self.placement,
            self.stages.hidden,
            delay_ms_max=self.config.delay_s_max * 1_000,
            messages_max=limits.delayed_messages_max,
            now_ms=now_ms,
            log=self.log,
        )
        self.metrics.watch_delayed(self.delayed)
        self.store.retention.keep_from = self.delayed.keep_from

        def divert(message: StoreMessage, kind: int, queue_index: int) -> StoreMessage:
            now_ms = self.clock.now_ms()
            wish = due_ms(message, kind, now_ms)
            return message if wish is None else self.delayed.put(message, kind, queue_index, wish, now_ms)

        def check_wait(message: StoreMessage, kind: int) -> None:
            now_ms = self.clock.now_ms()
            wish = due_ms(message, kind, now_ms)
            if wish is not None:
                self.delayed.admit(wish, now_ms)

        self.placement.divert = divert
        self.placement.check_wait = check_wait

    def _open_rooms(self, limits: LimitsConfig) -> None:
        """What waits: this turn's messages and commits, followers, long polls, commits at work."""
        self._unique_ids = 0
        self.group_commits = OffsetGather(self)
        self.commits: dict[str, CommitRun] = {}
        self.clients = Clients(expiry_ms=self.config.client_expiry_s * 1_000, on_group_changed=self._group_changed)
        self.appender = Appender(self)
        self.will_room = WillRoom(self)
        self.handovers = Handovers()
        self.delay_timer = DelayTimer(self.delayed, self.appender, self.clock, self.metrics, self.log)
        self.unpacker = Unpacker()
        self.followers = Followers(self)
        self.shared = SharedRoom(self)
        self.history = HistoryRoom(self)
        self.long_polls = LongPolls(waiters_max=limits.parked_requests_max, wait_ms_max=limits.long_poll_ms_max)
        self.topics.on_change(lambda _name, _created: self.long_polls.wake_all())
        self.store.on_fresh(self.followers.confirmed)
        self.store.on_advance(self.delay_timer.advanced, self.delayed.queues)
        self.store.on_advance(self.followers.advanced)
        self.store.on_advance(self.shared.advanced, self.shared_groups.queues)
        self.store.on_advance(self.long_polls.advanced, self.long_polls.waiters)

    @property
    def store_host(self) -> Host:
        """This broker's address as it stands in messages and their ids."""
        return ipv4_host(self.host, self.port)

    def unique_id(self) -> str:
        """A message id for a client that sent none: unique per process start, 32 hex digits."""
        self._unique_ids += 1
        return f"{self.store.epoch & 0xFFFFFFFF:08X}{self.started_ms & 0xFFFFFFFFFFFF:012X}{self._unique_ids:012X}"

    @property
    def address(self) -> str:
        """`host:port` that clients are told."""
        return f"{self.host}:{self.port}"

    def reply_at(self, position: int, peer: Peer, reply: Command) -> None:
        """Send a reply once everything below `position` is confirmed; a failed store is said instead."""
        self.when_confirmed(position, peer, reply, lambda: peer.send(reply))

    def when_confirmed(self, position: int, peer: Peer, reply: Command, then: Callable[[], None]) -> None:
        """Call `then` at that moment; if the store fails first, answer the refusal in the reply's place."""

        def confirmed(error: Exception | None) -> None:
            if error is None:
                then()
                return
            refused = refusal_of(self.metrics, error)
            reply.code, reply.remark, reply.body = refused.code, refused.remark, b""
            reply.fields = dict(refused.fields)
            peer.send(reply)

        self.store.when_confirmed(position, confirmed)

    def reply_found_at(self, position: int, names: Collection[str], peer: Peer, reply: Command) -> None:
        """As `reply_at`, and not before the controllers within reach have the routes of these topics."""
        send = partial(peer.send, reply)
        self.when_confirmed(position, peer, reply, partial(self.publication.when_published, names, send))

    def say_at(self, position: int, answer: T, said: Said[T]) -> None:
        """Say an answer once everything below `position` is confirmed, at once if it is; else what the store said."""

        def confirmed(error: Exception | None) -> None:
            if error is None:
                said(answer, None)
            else:
                said(None, refusal_of(self.metrics, error))

        self.store.when_confirmed(position, confirmed)

    def visible_end(self, queue_id: int) -> int:
        """Confirmed end of a queue that readers may see; 0 for a queue that does not exist or is hidden."""
        if self.hidden(queue_id):
            return 0
        return self.store.bounds(queue_id)[1]

    def hidden(self, queue_id: int) -> bool:
        """True for queue ids no reader gets an answer for: staged rows, and ids that do not exist."""
        if queue_id in self.stages.hidden:
            return True
        try:
            self.store.queue_name(queue_id)
        except LocalMisuse:
            return True
        return False

    def queue_title(self, queue_id: int) -> str:
        """The resource a queue is, for authorisation (`resources`); empty for one that nobody may see."""
        owner = self.topics.owner(queue_id)
        if owner is not None:
            return of_topic(owner[0])
        return of_topic(self.store.queue_name(queue_id).decode()) if not self.hidden(queue_id) else ""

    def watch_owner(self, peer: Peer) -> Peer:
        """The peer as an owner of sessions: when its connection ends, so does its ownership."""
        if _OWNER_ATTRIBUTE not in peer.attributes:
            peer.attributes[_OWNER_ATTRIBUTE] = True
            peer.on_close(lambda _reason: self._owner_gone(peer))
        return peer

    def _owner_gone(self, peer: Peer) -> None:
        self.appender.flush_exact()
        self.sessions.owner_gone(peer, self.clock.now_ms())
        self.will_room.run()

    def maintain(self, now_ms: int) -> None:
        """Expire what nobody uses any more and look at the rates; called every `maintain_interval_ms`."""
        self.rates_in.sample(now_ms, self.metrics.messages_in.value)
        self.rates_out.sample(now_ms, self.metrics.messages_out.value)
        ended = self.sessions.expire(now_ms)
        self.will_room.run()
        gone = self.filters.expire(now_ms)
        shared = self.shared.maintain(now_ms)
        staged = self.ledger.expire(now_ms)
        silent = self.clients.expire(now_ms)
        stale = self.retained_expiry.step(now_ms)
        self.locks.expire(now_ms)
        self.group_traffic.expire(now_ms)
        self.metrics.read_store(self.store)
        dropped = self.metrics.dropped
        counts = {"session_expired": ended, "filter_expired": gone, "stage_expired": staged, "client_silent": silent}
        counts["retained_expired"] = stale
        counts["shared_ended"] = shared
        counts[SESSION_ENDED], self.sessions.shared_lost = self.sessions.shared_lost, 0
        for reason, count in counts.items():
            if count:
                dropped.child(reason).value += count
                self.log.info("expired", reason=reason, count=count)

    def _unpublished(self, reason: str, topics: int) -> None:
        self.metrics.unpublished.child(reason).value += topics

    def _group_changed(self, group: str) -> None:
        for client in self.clients.clients_of(group):
            client.peer.send(
                Command(
                    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
                    flag=FLAG_ONEWAY,
                    fields={"consumerGroup": group},
                )
            )


async def _no_route(_topic: str) -> TopicRoute | None:
    return None
