"""What RocketMQ's tools ask about lite topics, and the request to examine them anew.

    200074 the broker, 200075 a parent topic, 200076 a lite topic, 200077 a client, 200078 a group
    200079 look into all lite topics of a group, or of one of its clients, for messages

Lite topics have the names that RocketMQ's tools know: `%LMQ%$parent$lite`. Lists are cut at what a request may cost.
Loop thread only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from broker.lite.registry import LiteRules, lite_topic_of, queue_name, shown_name
from broker.requests import number, text
from broker.rocketmq.statistics import stored_ms
from broker.topics.topics import LITE_EXPIRATION
from remoting.access.rights import ADMIN, of_group
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.groups.groups import Groups
    from broker.lite.registry import LiteRegistry
    from broker.lite.requests import LiteEvents
    from broker.lite.state import LiteTopics, Ownership
    from broker.requests import RequestTools
    from broker.topics.topics import Topics

LISTED_MAX = 10_000
"""Most lite topics of one answer, and most that a request about a group examines."""
NOT_KNOWN = -1

_encode = msgspec.json.encode


@dataclass(frozen=True, slots=True)
class LiteInfo:
    """Answers what RocketMQ's tools ask."""

    tools: RequestTools
    registry: LiteRegistry
    topics: LiteTopics
    ownership: Ownership
    events: LiteEvents
    groups: Groups
    table: Topics

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {
            Code.GET_BROKER_LITE_INFO: self.broker_info,
            Code.GET_PARENT_TOPIC_INFO: self.parent_info,
            Code.GET_LITE_TOPIC_INFO: self.topic_info,
            Code.GET_LITE_CLIENT_INFO: self.client_info,
            Code.GET_LITE_GROUP_INFO: self.group_info,
            Code.TRIGGER_LITE_DISPATCH: self.trigger,
        }

    def broker_info(self, peer: Peer, command: Command) -> Command:
        """200074: counts of this broker, and the expiration and the groups of each parent topic."""
        self.tools.authorizer.authorize(peer, command, ADMIN, "lite")
        queues = len(self.tools.store.state.queues)
        body = {
            "storeType": "default",
            "maxLmqNum": self.tools.config.limits.lite_topics_max,
            "currentLmqNum": sum(self.topics.counts.values()),
            "liteSubscriptionCount": self.registry.subscriptions,
            "orderInfoCount": len(self.ownership),
            "cqTableSize": queues,
            "offsetTableSize": 0,
            "eventMapSize": len(self.registry.clients),
            "topicMeta": {parent: self._minutes(parent) for parent in self.topics.expirations},
            "groupMeta": {parent: self.topics.groups_of(parent) for parent in self.topics.expirations},
        }
        return command.reply(body=_encode(body))

    def parent_info(self, peer: Peer, command: Command) -> Command:
        """200075: how many lite topics a parent topic has, their expiration, and its groups."""
        topic = text(command.fields, "topic")
        self.tools.authorizer.authorize(peer, command, ADMIN, topic)
        self.topics.require(topic)
        body = {
            "topic": topic,
            "ttl": self._minutes(topic),
            "groups": self.topics.groups_of(topic),
            "lmqNum": sum(self.topics.counts.values()),
            "liteTopicCount": self.topics.counts[topic],
        }
        return command.reply(body=_encode(body))

    def topic_info(self, peer: Peer, command: Command) -> Command:
        """200076: offsets of a lite topic and its subscribers."""
        parent, lite_topic = text(command.fields, "parentTopic"), text(command.fields, "liteTopic")
        self.tools.authorizer.authorize(peer, command, ADMIN, parent)
        self.topics.require(parent)
        name = queue_name(parent, lite_topic)
        queue_id = self.tools.store.queues.find(name)
        low, high = (0, 0) if queue_id is None else self.tools.store.reading.bounds(queue_id)
        last_ms = 0 if queue_id is None else stored_ms(self.tools.store, queue_id, high - 1, low, high)
        subscribers = islice(self.registry.subscribers(name), LISTED_MAX)
        body = {
            "parentTopic": parent,
            "liteTopic": lite_topic,
            "subscriber": [{"clientId": each.client_id, "group": each.group} for each in subscribers],
            "topicOffset": {"minOffset": low, "maxOffset": high, "lastUpdateTimestamp": last_ms},
            "shardingToBroker": True,
        }
        return command.reply(body=_encode(body))

    def client_info(self, peer: Peer, command: Command) -> Command:
        """200077: the lite topics of a client, up to `maxCount` of them; -1 for an unknown client."""
        fields = command.fields
        parent, group, client_id = text(fields, "parentTopic"), text(fields, "group"), text(fields, "clientId")
        self.tools.authorizer.authorize(peer, command, ADMIN, of_group(group))
        self.topics.require(parent)
        if self._rules(group).topic != parent:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"Subscription [{group}]-[{parent}] not match.")
        client = self.registry.clients.get((group, client_id))
        shown = min(number(fields, "maxCount", LISTED_MAX), LISTED_MAX)
        body: dict[str, Any] = {"parentTopic": parent, "group": group, "clientId": client_id}
        body |= {"liteTopicCount": NOT_KNOWN, "lastAccessTime": NOT_KNOWN, "lastConsumeTime": NOT_KNOWN}
        if client is not None:
            body |= {
                "liteTopicCount": len(client.names),
                "liteTopicSet": [shown_name(name) for name in islice(client.names, max(0, shown))],
                "lastAccessTime": client.popped_ms,
                "lastConsumeTime": client.consumed_ms,
            }
        return command.reply(body=_encode(body))

    def group_info(self, peer: Peer, command: Command) -> Command:
        """200078: how far a group is behind in one lite topic, or in which ones it is furthest behind."""
        group, lite_topic = text(command.fields, "group"), command.fields.get("liteTopic") or ""
        self.tools.authorizer.authorize(peer, command, ADMIN, of_group(group))
        rules = self._rules(group)
        body: dict[str, Any] = {"group": group, "parentTopic": rules.topic, "liteTopic": lite_topic}
        if lite_topic:
            body |= self._lag(group, queue_name(rules.topic, lite_topic))
        else:
            top = max(0, min(number(command.fields, "topK", 20), LISTED_MAX))
            lags = [self._lag(group, name) | {"liteTopic": lite_topic_of(name)} for name in self._names(group, rules)]
            lags = [
                {"liteTopic": lag["liteTopic"], "lagCount": lag["totalLagCount"],
                 "earliestUnconsumedTimestamp": lag["earliestUnconsumedTimestamp"]}
                for lag in lags if lag["totalLagCount"] > 0
            ]  # fmt: skip
            by_time = sorted(lags, key=lambda lag: lag["earliestUnconsumedTimestamp"])
            body |= {
                "totalLagCount": sum(lag["lagCount"] for lag in lags),
                "earliestUnconsumedTimestamp": by_time[0]["earliestUnconsumedTimestamp"] if by_time else NOT_KNOWN,
                "lagCountTopK": sorted(lags, key=lambda lag: -lag["lagCount"])[:top],
                "lagTimestampTopK": by_time[:top],
            }
        return command.reply(body=_encode(body))

    def trigger(self, peer: Peer, command: Command) -> Command:
        """200079: look for messages for a client of the group, or for all of them."""
        group, client_id = text(command.fields, "group"), command.fields.get("clientId") or ""
        self.tools.authorizer.authorize(peer, command, ADMIN, of_group(group))
        rules = self._rules(group)
        clients = [each for each in self.registry.of_group(group) if client_id in ("", each.client_id)]
        for client in clients[:1] if rules.wildcard else clients:
            self.events.search(client, self.topics.names(rules.topic) if rules.wildcard else list(client.names))
        return command.reply()

    def _rules(self, group: str) -> LiteRules:
        if self.groups.get(group) is None:
            raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group [{group}] not exist.")
        rules = self.events.rules(group)
        if rules is None:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"Group [{group}] is not a LITE group.")
        return rules

    def _names(self, group: str, rules: LiteRules) -> list[bytes]:
        """The lite topics that a group reads, some of them where there are many."""
        if rules.wildcard:
            return list(islice(self.topics.names(rules.topic), LISTED_MAX))
        found: Iterator[bytes] = (name for client in self.registry.of_group(group) for name in client.names)
        return list(dict.fromkeys(islice(found, LISTED_MAX)))

    def _lag(self, group: str, name: bytes) -> dict[str, Any]:
        """What a group has not acknowledged of a lite topic, in flight or not."""
        store = self.tools.store
        queue_id = store.queues.find(name)
        if queue_id is None:
            return {"totalLagCount": NOT_KNOWN, "earliestUnconsumedTimestamp": NOT_KNOWN}
        low, high = store.reading.bounds(queue_id)
        front, batch = self.ownership.front(group, name, queue_id), self.ownership.batch(group, queue_id)
        held = [] if batch is None else [*batch.times]
        first = held[0] if held else front
        return {
            "totalLagCount": high - front + len(held),
            "earliestUnconsumedTimestamp": stored_ms(store, queue_id, first, low, high),
            "liteTopicOffsetWrapper": {
                "brokerOffset": high,
                "consumerOffset": first,
                "pullOffset": front,
                "lastTimestamp": stored_ms(store, queue_id, first - 1, low, high),
            },
        }

    def _minutes(self, parent: str) -> int:
        """The expiration of the lite topics of a parent topic, -1 for never."""
        return int(self.table.require(parent).attributes.get(LITE_EXPIRATION, "-1"))
