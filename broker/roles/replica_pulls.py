"""What RocketMQ's consumers get from a replica: pulls, offsets, one message by its id; and their heartbeats.

    PULL_MESSAGE, LITE_PULL_MESSAGE                          messages, with the long poll of a master
    GET_MAX_OFFSET, GET_MIN_OFFSET, SEARCH_OFFSET_BY_TIMESTAMP, GET_EARLIEST_MSG_STORETIME, VIEW_MESSAGE_BY_ID
    QUERY_CONSUMER_OFFSET                                    an offset that is known to be confirmed; else refused
    HEART_BEAT, UNREGISTER_CLIENT                            noted here only, for the filters of pulls

The requests are those of a master, over the tables that the log of a replica fills: nothing is created, and no offset
committed. A replica is never sure: what it does not show yet, a topic or a group without an offset may only not have
come here. So a pull moves no reader but by the messages it gives, and a group's offset is never said not to exist,
which would let it begin anew. A consumer commits to the master; an offset in a pull is counted as not written.

Invariant: nothing at or above the confirm position that this replica knows is in an answer. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from broker.groups.feature import ClientRequests
from broker.groups.groups import (
    Clients,
    GroupConfig,
    GroupOffsets,
    Groups,
    configuration_in,
    require_pull,
)
from broker.groups.offset_queries import OffsetQueries
from broker.groups.request_modes import RequestModes
from broker.groups.traffic import GroupTraffic
from broker.reading.bounds import LongPolls
from broker.reading.read_barrier import never
from broker.requests import BrokerIdentity, RequestTools
from broker.rocketmq.group_requests import AssignmentRequests
from broker.rocketmq.pull import MessageViews, RocketmqPullRequests
from broker.router import checked
from broker.store.log.confirm import NEVER
from broker.store.state import state_kinds
from broker.topics.replica import ReplicaTopics
from remoting.batches.unpack import Unpacker
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode

if TYPE_CHECKING:
    from broker.metrics import BrokerMetrics
    from broker.reading.pull import ShownQueues
    from broker.rocketmq.group_requests import RouteFinder
    from broker.store.log_store import LogStore
    from remoting.transport.contracts import Handler, Peer

NOTED = frozenset({Code.HEART_BEAT, Code.UNREGISTER_CLIENT})
"""What is answered of the requests about members of groups: the members of a group are those that its master knows."""


ACTING = frozenset({Code.GET_CONSUMER_LIST_BY_GROUP, Code.QUERY_ASSIGNMENT})
"""Who stands in for the master knows the members of groups, and what they read: its clients take it for the master."""

KeepOffset = Callable[[str, str, int, int], bool]
"""Keeps (group, topic, queue index, offset) for a master; False where this broker does not."""


def keep_nothing(_group: str, _topic: str, _index: int, _offset: int) -> bool:
    """No offset is kept."""
    return False


class ReplicaGroups:
    """Groups and their offsets as the log has them so far; their members as they are connected here."""

    def __init__(self, store: LogStore, metrics: BrokerMetrics, expiry_ms: int, keep: KeepOffset) -> None:
        """`expiry_ms`: how long a silent client counts as present. `keep` takes the offsets in pulls."""
        # The master notifies the members of a group when one joins or leaves.
        self.clients = Clients(expiry_ms=expiry_ms, on_group_changed=lambda _group: None)
        self.traffic = GroupTraffic()
        self._store, self._keep = store, keep
        self._metrics = metrics
        self._offsets, self._modes = GroupOffsets(store), RequestModes(store)

    def meet(self, group: str) -> int:
        """A member of the group is there; its answer waits for nothing."""
        Groups.check((group,))
        return 0

    def configuration(self, group: str) -> GroupConfig:
        """The configuration of a group, that of a new one where it is not known."""
        Groups.check((group,))
        return self._known(group) or GroupConfig(group_name=group)

    def require_pull(self, group: str, topic: str) -> None:
        """Refused(ILLEGAL_OPERATION) when the group pops this topic or light queue."""
        require_pull(self._known(group), group, topic, self._modes)

    def commit(self, _peer: Peer, group: str, topic: str, index: int, offset: int) -> None:
        """Keep an offset while this broker stands in for the master, else count it.

        RocketMQ's clients send none with a pull of what they know to be a replica.
        """
        if not self._keep(group, topic, index, offset):
            self._metrics.dropped.child("offset_not_written").value += 1

    def committed(self, group: str, topic: str, index: int) -> tuple[int, int]:
        """(offset, 0): it is confirmed. Refused where none is known, or the newest may be lost again."""
        found = self._offsets.get(group, topic, index)
        if found is None or found[1] > self._store.confirm_position:
            remark = f"this replica knows no confirmed offset of the group [{group}] in {topic}/{index}: ask the master"
            raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, remark)
        return found[0], 0

    def _known(self, group: str) -> GroupConfig | None:
        found = self._store.state.get(state_kinds.GROUP, group.encode())
        return None if found is None else configuration_in(found[0])


class NoReplies:
    """Topics for answers to requests of MQTT clients: the master creates them."""

    def expect_mqtt_requests(self) -> None:
        """Do nothing: the master of this group will, when a consumer asks it."""

    def when_found(self, then: Callable[[], None]) -> None:
        """Call `then` at once: no topic is on its way to the controllers from here."""
        then()


class ReplicaPulls:
    """Answers RocketMQ's consumers from the log of a replica."""

    def __init__(
        self,
        tools: RequestTools,
        visible: ShownQueues,
        is_open: Callable[[], bool],
        routes: RouteFinder,
        keep: KeepOffset = keep_nothing,
    ) -> None:
        """`tools` are sure of what they are asked about; `is_open`: whether the log is.

        `routes` are asked for while this broker stands in for the master; `keep` takes the offsets in pulls.
        """
        limits, store = tools.config.limits, tools.store
        self.groups = ReplicaGroups(store, tools.metrics, tools.config.client_expiry_s * 1_000, keep)
        self.long_polls = LongPolls(
            waiters_max=limits.parked_requests_max, wait_ms_max=limits.long_poll_ms_max, may_answer=is_open
        )
        store.positions.on_advance(self.long_polls.advanced, self.long_polls.waiters)
        topics, unpacker = ReplicaTopics(store), Unpacker()
        self.identity = identity = BrokerIdentity(
            epoch=store.epoch, started_ms=tools.identity.started_ms, started_position=NEVER
        )
        identity.is_replica_read = lambda _broker_id: True
        doubtful = replace(tools, identity=identity)
        members = ClientRequests(tools, groups=self.groups, clients=self.groups.clients).handlers()
        pulls = RocketmqPullRequests(
            doubtful,
            queues=topics,
            groups=self.groups,
            long_polls=self.long_polls,
            unpacker=unpacker,
            replies=NoReplies(),
            prove=never,
        )
        views = MessageViews(doubtful, topics=topics, unpacker=unpacker, visible=visible)
        self.handlers: dict[int, Handler] = checked(
            tools,
            {
                **pulls.handlers(),
                **views.handlers(),
                **OffsetQueries(tools, queues=topics, offsets=self.groups).handlers(),
                **{code: members[code] for code in NOTED},
            },
        )
        """Request code -> handler."""
        assignments = AssignmentRequests(
            tools, topics=topics, clients=self.groups.clients, modes=RequestModes(store), routes=routes
        )
        members |= assignments.handlers()
        self.acting_handlers: dict[int, Handler] = checked(tools, {code: members[code] for code in ACTING})
        """The same for requests that are answered only while this broker stands in for the master."""

    def maintain(self, now_ms: int) -> None:
        """Forget clients that were silent, and figures of groups that were given nothing for long."""
        self.groups.clients.expire(now_ms)
        self.groups.traffic.expire(now_ms)
