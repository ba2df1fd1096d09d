"""Consumer groups as one feature, with the requests about members, queue locks and offsets.

    34 heartbeat, 35 unregister, 38 members of a group, 46 check of a subscription
    41 and 42 queue locks, 9098 those that a replica granted (`locks`)
    15 update an offset; 14, 29 to 32 questions about offsets (`offset_queries`)

A group is created by its first heartbeat together with its retry topic, whose route is published at once, because
clients request it right away. Bodies are read leniently: enums as names or numbers, missing sets as empty. Filters of
consumers are tags (`a || b`) or an SQL92 expression over the properties; an invalid one is Refused with 23 before
anything is read.

Members are sent what concerns their group only while they may read it; a client id belongs to the key whose heartbeat
brought it as long as that client is here.

Invariant: a commit, and a group that a heartbeat creates, is answered once its record is confirmed. Loop thread only.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import msgspec

from broker.groups.groups import (
    Clients,
    GroupClient,
    GroupConfig,
    GroupOffsets,
    Groups,
    OffsetGather,
    retry_topic,
)
from broker.groups.locks import HOLD_MS, Fence, LockRequests, QueueLocks
from broker.groups.merging import OffsetMerge
from broker.groups.offset_queries import OffsetQueries
from broker.groups.traffic import GroupTraffic
from broker.requests import Feature, RequestTools, json_body, number, refusal_of, text
from broker.topics.topics import is_light
from remoting.access.rights import CONSUME, of_group, of_record, of_topic
from remoting.filtering import expressions
from remoting.filtering.judge import properties_of
from remoting.protocol.errors import LocalMisuse, Refused
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode, request_name
from remoting.protocol.frames.commands import FLAG_ONEWAY, Command
from remoting.protocol.records.record import RecordView
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.topics.feature import TopicFeature
    from broker.topics.topics import Topics
    from remoting.server.authorizer import RequestReceiver

TAG = "TAG"
SQL92 = "SQL92"
EXPRESSIONS_KEPT = 1_024
"""Parsed expressions that are cached."""

Selection = Callable[[RecordView], bool]


@functools.lru_cache(EXPRESSIONS_KEPT)
def selection(expression: str, kind: str) -> Selection | None:
    """A predicate over records; None for a subscription to all of them.

    Raises:
        Refused: an expression that cannot be parsed, or of a kind that is not known.
    """
    if kind == TAG:
        return _by_tags(expression)
    if kind != SQL92:
        remark = "The broker does not support consumer to filter message by " + kind
        raise Refused(ResponseCode.SYSTEM_ERROR, remark)
    try:
        predicate = expressions.parse_sql92(expression)
    except LocalMisuse as error:
        raise Refused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from error
    return lambda view: predicate(properties_of(view)) is True


def _by_tags(expression: str) -> Selection | None:
    named = [tag.strip() for tag in expression.split("||")]
    if "*" in named or not any(named):
        return None
    return TagSelection(frozenset(tag.encode() for tag in named if tag))


class TagSelection:
    """Chooses the records with one of these tags."""

    __slots__ = ("tags",)

    def __init__(self, tags: frozenset[bytes]) -> None:
        self.tags = tags

    def __call__(self, view: RecordView) -> bool:
        """Whether the record has one of the tags."""
        return view.tags in self.tags


CLIENT_ATTRIBUTE = "client id"
"""Set on a peer by its first heartbeat."""
RELEASE_CHARS_MAX = 32
"""Longer versions of gRPC clients are cut."""
GROUPS_PER_HEARTBEAT_MAX = 1_000
"""Groups one client may name; more are refused."""


class MetGroups(Protocol):
    """Where the groups in heartbeats are noted."""

    def meet(self, group: str, /) -> int:
        """Note that a group exists; the log position that an answer to its member waits for.

        Raises:
            Refused: its name is not valid, or there is no room for it.
        """
        ...


class ClientRequests:
    """Heartbeats and members of groups."""

    def __init__(self, tools: RequestTools, *, groups: MetGroups, clients: Clients) -> None:
        self._tools = tools
        self._groups = groups
        self._clients = clients

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {
            Code.HEART_BEAT: self.heartbeat,
            Code.UNREGISTER_CLIENT: self.unregister,
            Code.CHECK_CLIENT_CONFIG: self.check_client,
            Code.GET_CONSUMER_LIST_BY_GROUP: self.consumer_list,
        }

    def heartbeat(self, peer: Peer, command: Command) -> None:
        """34: note producers and consumers; answered when the groups it created are confirmed and have their routes."""
        body = json_body(command)
        client_id = str(body.get("clientID") or "")
        if not client_id:
            raise Refused(ResponseCode.INVALID_PARAMETER, "the heartbeat has no clientID")
        producers = {str(item.get("groupName")) for item in body.get("producerDataSet") or ()}
        consumers = {str(item.get("groupName")): dict(item) for item in body.get("consumerDataSet") or ()}
        if len(producers) + len(consumers) > GROUPS_PER_HEARTBEAT_MAX:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"more than {GROUPS_PER_HEARTBEAT_MAX} groups in a heartbeat")
        position = 0
        for group in consumers:
            self._tools.authorizer.authorize(peer, command, CONSUME, of_group(group))
            position = self._groups.meet(group)
        receiver = self._own(peer, command, client_id)
        if CLIENT_ATTRIBUTE not in peer.attributes:
            peer.attributes[CLIENT_ATTRIBUTE] = client_id
            peer.on_close(lambda _reason: self._clients.peer_closed(peer))
        now_ms = self._tools.clock.now_ms()
        client = GroupClient(client_id, peer, command.language, command.version, now_ms, receiver)
        if isinstance(body.get("grpcRelease"), str):
            client.grpc_release = body["grpcRelease"][:RELEASE_CHARS_MAX]
        if body.get("withoutSub"):
            consumers = self._clients.with_subscriptions(client_id, consumers)
        changed = self._clients.heartbeat(client, producers, consumers)
        fields = {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true" if changed else "false"}
        retried = [retry_topic(group) for group in consumers]
        self._tools.answers.reply_when_found(position, retried, peer, command.reply(fields=fields))

    def _own(self, peer: Peer, command: Command, client_id: str) -> RequestReceiver:
        """Who the client is. Refused(NO_PERMISSION) while this client id belongs to somebody else who is connected."""
        authorizer = self._tools.authorizer
        receiver, known = authorizer.receiver(peer, command), self._clients.receiver_of(client_id)
        is_other = known is not None and (known.identity, known.is_trusted) != (receiver.identity, receiver.is_trusted)
        if is_other and not authorizer.open:
            raise Refused(ResponseCode.NO_PERMISSION, f"the client id {client_id} belongs to another key's client")
        return receiver

    def check_client(self, _peer: Peer, command: Command) -> Command:
        """46: whether a subscription is valid; clients check it before they start."""
        given = json_body(command).get("subscriptionData")
        if isinstance(given, dict):
            selection(str(given.get("subString") or "*"), str(given.get("expressionType") or TAG))
        return command.reply()

    def unregister(self, peer: Peer, command: Command) -> Command:
        """35: a client leaves a group."""
        fields = command.fields
        self._own(peer, command, text(fields, "clientID"))
        self._clients.unregister(text(fields, "clientID"), fields.get("producerGroup"), fields.get("consumerGroup"))
        return command.reply()

    def consumer_list(self, peer: Peer, command: Command) -> Command:
        """38: client ids of a consumer group, sorted; SYSTEM_ERROR when it has none, as RocketMQ answers."""
        group = text(command.fields, "consumerGroup")
        self._tools.authorizer.authorize(peer, command, CONSUME, of_group(group))
        members = self._clients.members(group)
        if not members:
            return command.reply(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group}")
        return command.reply(body=msgspec.json.encode({"consumerIdList": members}))


class CommitRequests:
    """Commits of groups, one queue at a time."""

    def __init__(
        self, tools: RequestTools, *, topics: Topics, group_commits: OffsetGather, groups: Groups, fence: Fence
    ) -> None:
        self._tools = tools
        self._groups = groups
        self._topics = topics
        self._group_commits = group_commits
        self._fence = fence

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {Code.UPDATE_CONSUMER_OFFSET: self.update_consumer_offset}

    def update_consumer_offset(self, peer: Peer, command: Command) -> None:
        """15: commit the group's offset; one-way in practice, answered when confirmed otherwise.

        Refused for what the group consumes by POP or POP_LITE, where the offset is that of the next message to give.
        """
        fields = command.fields
        group, topic, index = text(fields, "consumerGroup"), text(fields, "topic"), number(fields, "queueId")
        offset = number(fields, "commitOffset")
        self._tools.authorizer.authorize(peer, command, CONSUME, of_group(group))
        self._tools.authorizer.authorize(peer, command, CONSUME, of_topic(topic))
        if not is_light(topic):
            self._topics.require(topic)
        if offset < 0:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"commitOffset {offset} is negative")
        self._groups.require_pull(group, topic)
        if not self._fence.allows(peer, group, topic, index):
            raise Refused(ResponseCode.SYSTEM_ERROR, f"queue {topic}/{index} is locked by another member of {group}")

        def done(error: Exception | None) -> None:
            if command.is_oneway:
                return
            if error is None:
                peer.send(command.reply())
            else:
                refused = refusal_of(self._tools.metrics, error)
                peer.send(command.reply(refused.code, refused.remark, refused.fields))

        self._group_commits.add(group, topic, index, offset, done)


class ConsumerGroups(Feature):
    """The consumer groups of a broker."""

    def __init__(self, tools: RequestTools, topics: TopicFeature) -> None:
        self.groups = Groups(tools.store, topics.table)
        self.offsets = GroupOffsets(tools.store)
        self.commits = OffsetGather(self.offsets, tools.store, tools.metrics)
        self.clients = Clients(expiry_ms=tools.config.client_expiry_s * 1_000, on_group_changed=self._changed)
        self.traffic = GroupTraffic()
        self._tools, self._config = tools, tools.config
        self.merge = OffsetMerge(
            tools, groups=self.groups, queues=topics.queues, offsets=self.offsets, commits=self.commits
        )
        replication = tools.config.replication
        hold_ms = HOLD_MS if replication.enabled and replication.acting_master else 0
        self._locks = QueueLocks(tools.store, tools.identity.started_ms, hold_ms)
        self.fence = Fence(tools, self._locks, self.clients)
        self.locks = LockRequests(tools, groups=self.groups, queues=topics.queues, locks=self._locks)
        self._requests = (
            self.merge,
            ClientRequests(tools, groups=self.groups, clients=self.clients),
            self.locks,
            OffsetQueries(tools, queues=topics.queues, offsets=self.commits),
            CommitRequests(
                tools, topics=topics.table, group_commits=self.commits, groups=self.groups, fence=self.fence
            ),
        )

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {code: handler for requests in self._requests for code, handler in requests.handlers().items()}

    def configuration(self, group: str) -> GroupConfig:
        """The configuration of a group that reads, created where there is none. Raises as `Groups.ensure_if_room`."""
        return self.groups.ensure_if_room(group)

    def require_pull(self, group: str, topic: str) -> None:
        """Refused(ILLEGAL_OPERATION) when the group pops this topic or light queue."""
        self.groups.require_pull(group, topic)

    def commit(self, peer: Peer, group: str, topic: str, index: int, offset: int) -> None:
        """Commit the offset in a pull; not for who may not, as another member has the queue's lock."""
        if self.fence.allows(peer, group, topic, index):
            self.commits.add(group, topic, index, offset)

    def may_receive(self, client: GroupClient, code: int, group: str, record: RecordView | None = None) -> bool:
        """Whether a member may be sent a request about its group, and the record in it; counted and logged if not.

        Its rights may have ended since its heartbeat.
        """
        resources = [of_group(group)] if record is None else [of_group(group), of_record(record)]
        may = self._tools.authorizer.may_receive
        if all(may(client.receiver, CONSUME, resource) for resource in resources):
            return True
        self._tools.metrics.dropped.child("receiver_not_permitted").value += 1
        self._tools.log.warning("request_withheld", request=request_name(code), client=client.client_id, group=group)
        return False

    def configure(self) -> None:
        """Take over how long a silent client counts as present."""
        self.clients.expiry_ms = self._config.client_expiry_s * 1_000

    def stop(self) -> None:
        """Write the commits that have gathered."""
        self.commits.flush()

    def maintain(self, now_ms: int) -> dict[str, int]:
        """Drop silent clients, and locks and figures that were not renewed; how many clients, by reason."""
        self._locks.expire(now_ms)
        self.traffic.expire(now_ms)
        return {"client_silent": self.clients.expire(now_ms)}

    def status(self) -> dict[str, int]:
        """How many clients are known."""
        return {"clients": len(self.clients)}

    def _changed(self, group: str) -> None:
        if self.clients.broadcasts(group):  # each member reads all queues: nothing is to be shared out anew
            return
        for client in self.clients.clients_of(group):
            fields = {"consumerGroup": group}
            if self.may_receive(client, Code.NOTIFY_CONSUMER_IDS_CHANGED, group):
                client.peer.send(Command(Code.NOTIFY_CONSUMER_IDS_CHANGED, flag=FLAG_ONEWAY, fields=fields))
