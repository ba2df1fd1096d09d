"""What a replica serves: ranges of confirmed records, for readers that ask a replica for them by queue and offset.

    MULTI_PULL, RANGE_PULL, FILTERED_PULL, RECORDS_AT     as at the master, by the same code, rights and limits
    HISTORY                                               the messages of a filter between two positions, likewise
    GET_TOPIC_CONFIG, GET_SUBSCRIPTIONGROUP_CONFIG        of topics and groups that are known here; others are refused
    what consumers of RocketMQ ask                        see `replica_pulls`

A request of the first kind says in a field that a replica may answer it; without that it is refused as any other is,
since its sender takes this broker for the master and would take an offset that is not known here for one that is lost.
RocketMQ's clients find replicas in their routes and have no such field; their answers say nothing that only a master
can know. A replica learns
the confirm position from its master, with the bytes that follow or a heartbeat (`stream_heartbeat_ms`), so it may know
less than the master and never more: an offset that it does not show yet is answered like one behind the end. Bounds of
queues are not answered here: what a reader plans comes from the master alone.

Invariants: nothing at or above the confirm position that this replica knows is in an answer; a queue that no topic has
(its name begins with 0x01) is hidden. A replica cuts its log between two requests, above what is confirmed, and answers
are copies. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from broker.acting.replica import ActingReplica
from broker.groups.groups import GroupConfig, configuration_in
from broker.history.feature import HistoryFeature
from broker.metrics import BrokerMetrics
from broker.reading.pull import PullRequests
from broker.reading.read_barrier import unneeded
from broker.requests import BrokerIdentity, ConfirmedAnswers, RequestTools, text
from broker.roles.replica_pulls import ReplicaPulls
from broker.router import checked
from broker.store.state import state_kinds
from broker.topics.replica import ReplicaTopics
from broker.topics.topics import TopicSettings, settings_in
from broker.transactions.feature import CheckQuestions
from remoting.access.rights import CONSUME, LOCATE, of_group, of_topic
from remoting.protocol.bodies.controller_body import TopicRoute
from remoting.protocol.bodies.pull_body import FROM_REPLICA_FIELD
from remoting.protocol.errors import LocalMisuse, Refused
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.server.authorizer import Authorizer

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from broker.store.log_store import LogStore
    from remoting.transport.contracts import Handler, Peer
    from runtime.clock import Clock
    from runtime.metrics import Registry

HIDDEN_PREFIX = b"\x01"
"""Names of queues that readers never see begin with it: staged rows, waiting messages, records of acts."""


class ReplicaQueues:
    """The queues that readers of a replica see; its log names them, as there is no table of topics here."""

    def __init__(self, store: LogStore) -> None:
        self._store = store

    def hidden(self, queue_id: int) -> bool:
        """True for queue ids that readers never see, and ids that do not exist."""
        return not self._shown_name(queue_id)

    def title(self, queue_id: int) -> str:
        """The resource of a queue, for authorisation; empty for a hidden one."""
        name = self._shown_name(queue_id)
        return of_topic(name.partition(b"\x00")[0].decode()) if name else ""

    def _shown_name(self, queue_id: int) -> bytes:
        try:
            name = self._store.queues.name(queue_id)
        except LocalMisuse:
            return b""
        return b"" if name.startswith(HIDDEN_PREFIX) else name


class ReplicaSettings:
    """Topics and groups as they are known to be confirmed, for proxies of consumers."""

    def __init__(self, store: LogStore, authorizer: Authorizer) -> None:
        self._store, self._authorizer = store, authorizer

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {Code.GET_TOPIC_CONFIG: self.topic, Code.GET_SUBSCRIPTIONGROUP_CONFIG: self.group}

    def topic(self, peer: Peer, command: Command) -> Command:
        """351: the settings of one topic, for who may locate it."""
        name = text(command.fields, "topic")
        self._authorizer.authorize(peer, command, LOCATE, name)
        return self._answer(command, self._confirmed(state_kinds.TOPIC, name), settings_in)

    def group(self, peer: Peer, command: Command) -> Command:
        """352: one group, for its consumers."""
        name = text(command.fields, "group")
        self._authorizer.authorize(peer, command, CONSUME, of_group(name))
        return self._answer(command, self._confirmed(state_kinds.GROUP, name), configuration_in)

    def _confirmed(self, kind: int, name: str) -> bytes | None:
        found = self._store.state.get(kind, name.encode())
        return None if found is None or found[1] >= self._store.confirm_position else found[0]

    def _answer(
        self, command: Command, found: bytes | None, read: Callable[[bytes], TopicSettings | GroupConfig]
    ) -> Command:
        if found is None:
            raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, "this replica does not know it yet: ask the master")
        return command.reply(body=msgspec.json.encode(read(found)))


class ReplicaReads:
    """Answers requests for records while the log of a replica is open."""

    def __init__(
        self, config: BrokerConfig, clock: Clock, registry: Registry, log: Any, authorizer: Authorizer
    ) -> None:
        self.served = 0
        """Requests handed to a handler."""
        self.acting: ActingReplica | None = None
        """What answers, before anything else here, while this broker stands in for the master."""
        self._config, self._clock, self._log, self._authorizer = config, clock, log, authorizer
        self._metrics = BrokerMetrics(registry)
        self._handlers: dict[int, Handler] = {}
        self._pulls: ReplicaPulls | None = None
        self._questions: CheckQuestions | None = None
        self._registry = registry
        self._host, self._port = "127.0.0.1", 0

    def tell_address(self, host: str, port: int) -> None:
        """Where clients reach this broker; messages name it as the host that they are stored at."""
        self._host, self._port = host, port
        if self._pulls is not None:
            self._pulls.identity.host, self._pulls.identity.port = host, port

    def open(self, store: LogStore) -> None:
        """Answer from this log from now on; nothing is answered where `replica_reads` is off."""
        if not self._config.replication.replica_reads:
            return
        now_ms = self._clock.now_ms()
        # Who asks a replica knows that it may be behind, and is told so by the offsets themselves: always sure.
        identity = BrokerIdentity(epoch=store.epoch, started_ms=now_ms, started_position=0)
        answers = ConfirmedAnswers(store, self._metrics, lambda _topics, then: then())
        tools = RequestTools(
            self._config, store, self._clock, self._metrics, self._log, self._authorizer, answers, identity
        )
        visible = ReplicaQueues(store)
        history = HistoryFeature(tools, topics=ReplicaTopics(store), visible=visible, is_replica=True)
        settings = ReplicaSettings(store, self._authorizer)
        self._handlers = PullRequests(tools, visible=visible, prove=unneeded).handlers() | checked(
            tools, history.handlers() | settings.handlers()
        )
        self._pulls = pulls = ReplicaPulls(tools, visible, lambda: self._pulls is pulls, self, self._keep)
        self._questions = CheckQuestions(
            pulls.groups.clients, pulls.identity, self._config.cluster_name, self._registry, self._authorizer, self._log
        )
        self.tell_address(self._host, self._port)

    @property
    def is_acting(self) -> bool:
        """Whether this broker stands in for the master now."""
        return self.acting is not None and self.acting.presence.acts()

    def close(self) -> None:
        """Answer nothing: the log is about to be closed."""
        self._handlers, self._pulls, self._questions = {}, None, None

    def maintain(self) -> None:
        """Forget who was silent for long, and do what a replica does that stands in for the master."""
        now_ms = self._clock.now_ms()
        if self._pulls is not None:
            self._pulls.maintain(now_ms)
        if self.acting is not None and self._questions is not None:
            self.acting.maintain(now_ms, self._questions)

    def find(self, command: Command) -> Handler | None:
        """What answers a request that a replica may answer; None for any other."""
        if self.acting is not None and (handler := self.acting.find(command)) is not None:
            return handler
        handler = self._handlers.get(command.code) if FROM_REPLICA_FIELD in command.fields else None
        if handler is None and self._pulls is not None:
            handler = self._pulls.handlers.get(command.code)
            if handler is None and self.is_acting:
                handler = self._pulls.acting_handlers.get(command.code)
        self.served += handler is not None
        return handler

    async def find_route(self, topic: str) -> TopicRoute:
        """Where a topic's queues are, for a replica that stands in. Raises ConnectionLost."""
        assert self.acting is not None, "nothing else asks"
        return await self.acting.find_route(topic)

    def _keep(self, group: str, topic: str, index: int, offset: int) -> bool:
        return self.acting is not None and self.acting.keep((group, topic, index), offset)
