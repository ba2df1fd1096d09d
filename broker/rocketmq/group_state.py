"""What RocketMQ's tools ask about groups and clients beyond their lag.

    43  offsets of all groups               303 first, last and read times of a topic's queues for a group
    328 the connected producers             308 least offsets of all groups in a topic, against one group
    345 a group's subscription to a topic   352 one group's configuration
    314 copy the offsets of a group to another one

Bodies are RocketMQ's JSON. Invariant: offsets and times shown are confirmed, commits that came before are among them;
times are of messages that are still kept. Loop thread only.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from broker.requests import text
from broker.rocketmq.statistics import queue_key, stored_ms
from remoting.access.rights import ADMIN, CONSUME, of_group
from remoting.protocol.bodies.pull_body import FROM_REPLICA_FIELD
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.server.router import later
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.groups.feature import ConsumerGroups
    from broker.requests import RequestTools
    from broker.topics.topics import Topics

NO_MESSAGE_MS = -1
"""RocketMQ's time of a message that there is not."""
BEYOND = 2**63 - 1
"""RocketMQ's offset of a queue in which the compared group is behind all others."""

_encode = msgspec.json.encode


@dataclass(frozen=True, slots=True)
class GroupStateRequests:
    """Answers what tools ask about groups and clients."""

    tools: RequestTools
    topics: Topics
    groups: ConsumerGroups

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {
            Code.GET_ALL_CONSUMER_OFFSET: self.all_offsets,
            Code.QUERY_CONSUME_TIME_SPAN: self.time_spans,
            Code.QUERY_CORRECTION_OFFSET: self.correction_offsets,
            Code.CLONE_GROUP_OFFSET: self.clone_offsets,
            Code.GET_ALL_PRODUCER_INFO: self.producers,
            Code.QUERY_SUBSCRIPTION_BY_CONSUMER: self.subscription,
            Code.GET_SUBSCRIPTIONGROUP_CONFIG: self.group_config,
        }

    def all_offsets(self, peer: Peer, command: Command) -> None:
        """43: the offsets of every group."""
        self.tools.authorizer.authorize(peer, command, ADMIN, "offsets")
        self.groups.commits.flush()
        later(peer, command, self._all_offsets(command))

    async def _all_offsets(self, command: Command) -> Command:
        table: dict[str, dict[str, int]] = {}
        for group, offsets in (await self.groups.offsets.by_group()).items():
            await asyncio.sleep(0)
            for (topic, index), offset in offsets.items():
                table.setdefault(f"{topic}@{group}", {})[str(index)] = offset
        return command.reply(body=_encode({"offsetTable": table}))

    def time_spans(self, peer: Peer, command: Command) -> Command:
        """303: when the first and the last message of each queue and the last one read were stored; how late it is."""
        group, topic = text(command.fields, "group"), text(command.fields, "topic")
        self.tools.authorizer.authorize(peer, command, ADMIN, of_group(group))
        self.topics.require(topic)
        self.groups.commits.flush()
        spans = [
            {"messageQueue": queue_key(self.tools.config.broker_name, topic, index), **self._times(group, topic, index)}
            for index in range(len(self.topics.queue_ids(topic)))
        ]
        return command.reply(body=_encode({"consumeTimeSpanSet": spans}))

    def correction_offsets(self, peer: Peer, command: Command) -> None:
        """308: the least offset of any group per queue of a topic; `BEYOND` where the compared group is behind it."""
        fields = command.fields
        topic = text(fields, "topic")
        self.tools.authorizer.authorize(peer, command, ADMIN, topic)
        self.groups.commits.flush()
        later(peer, command, self._correction_offsets(command, topic))

    async def _correction_offsets(self, command: Command, topic: str) -> Command:
        fields = command.fields
        left_out = {name.strip() for name in (fields.get("filterGroups") or "").split(",")}
        least: dict[int, int] = {}
        offsets = await self.groups.offsets.by_group(topic)
        for group, queues in offsets.items():
            for (_topic, index), offset in queues.items():
                if group not in left_out:
                    least[index] = min(offset, least.get(index, offset))
        for (_topic, index), offset in offsets.get(fields.get("compareGroup") or "", {}).items():
            if least.get(index, offset) > offset:
                least[index] = BEYOND
        return command.reply(body=_encode({"correctionOffsets": {str(index): at for index, at in least.items()}}))

    def clone_offsets(self, peer: Peer, command: Command) -> None:
        """314: commit a group's offsets for another group, of one topic or of all; its members keep their own."""
        fields = command.fields
        source, target = text(fields, "srcGroup"), text(fields, "destGroup")
        for group in (source, target):
            self.tools.authorizer.authorize(peer, command, ADMIN, of_group(group))
        wanted = fields.get("topic") or ""
        if self.groups.clients.members(target):
            remark = f"the group [{target}] has members that are connected and would commit their own offsets"
            raise Refused(ResponseCode.SYSTEM_ERROR, remark)
        self.groups.commits.flush()
        copied = [
            (target, topic, index, offset)
            for (topic, index), offset in self.groups.offsets.of_group(source).items()
            if wanted in ("", topic)
        ]
        if copied:
            self.groups.groups.ensure(target, "")
        for _target, topic, _index, _offset in copied:
            self.groups.groups.require_pull(target, topic)
        position = self.groups.offsets.commit(copied) if copied else self.tools.store.confirm_position
        self.tools.answers.reply_at(position, peer, command.reply())

    def producers(self, peer: Peer, command: Command) -> Command:
        """328: the connected producers, by group."""
        self.tools.authorizer.authorize(peer, command, ADMIN, "clients")
        table: dict[str, list[dict[str, Any]]] = {}
        for client in self.groups.clients:
            shown = {
                "clientId": client.client_id,
                "remoteIP": f"/{client.peer.address}",
                "language": client.language,
                "version": client.version,
                "lastUpdateTimestamp": client.seen_ms,
            }
            for group in client.producer_groups:
                table.setdefault(group, []).append(shown)
        return command.reply(body=_encode({"data": table}))

    def subscription(self, peer: Peer, command: Command) -> Command:
        """345: the subscription of a group to a topic; null while no member has one."""
        group, topic = text(command.fields, "group"), text(command.fields, "topic")
        self.tools.authorizer.authorize(peer, command, ADMIN, of_group(group))
        found = self.groups.clients.subscription(group, topic)
        return command.reply(body=_encode({"group": group, "topic": topic, "subscriptionData": found}))

    def group_config(self, peer: Peer, command: Command) -> Command | None:
        """352: the configuration of one group, for administrators and for its consumers.

        The question of one who may consume with the group creates it, as a first heartbeat does: RocketMQ's proxy asks
        this before its consumers do anything else, and turns away those of a group that does not exist. Who is content
        with a replica's answer creates none.
        """
        group, groups, authorizer = text(command.fields, "group"), self.groups.groups, self.tools.authorizer
        consumes = authorizer.allows(peer, command, CONSUME, of_group(group))
        if not consumes and not authorizer.allows(peer, command, ADMIN, of_group(group)):
            authorizer.authorize(peer, command, CONSUME, of_group(group))
        found = groups.get(group)
        if found is not None:
            return command.reply(body=_encode(found))
        if not consumes or FROM_REPLICA_FIELD in command.fields:
            raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"the group [{group}] does not exist")
        created = groups.ensure_if_room(group)
        self.tools.answers.reply_at(self.tools.store.end_position, peer, command.reply(body=_encode(created)))
        return None

    def _times(self, group: str, topic: str, index: int) -> dict[str, int]:
        store, queue_id = self.tools.store, self.topics.queue_ids(topic)[index]
        low, high = store.reading.bounds(queue_id)

        def stored(offset: int) -> int:
            return stored_ms(store, queue_id, offset, low, high) or NO_MESSAGE_MS

        committed = self.groups.offsets.get(group, topic, index)
        offset = committed[0] if committed is not None else 0
        first = stored(low)
        waiting = stored(max(offset, low)) if offset < high else NO_MESSAGE_MS
        return {
            "minTimeStamp": first,
            "maxTimeStamp": stored(high - 1),
            "consumeTimeStamp": stored(offset - 1) if offset > 0 else first,
            "delayTime": max(0, self.tools.clock.now_ms() - waiting) if waiting != NO_MESSAGE_MS else 0,
        }
