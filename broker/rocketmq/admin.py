"""Administration with RocketMQ's tools.

    topics 17, 18, 21, 215, 351    groups 200, 201, 225    state 28, 202

Bodies are RocketMQ's JSON. Where RocketMQ writes an object as a key (`{{"topic":..}:{..}}`), a client of language JAVA
gets exactly that, all others standard JSON with the queue as text.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from broker.groups.groups import GroupConfig, changed_attributes, retry_topic
from broker.requests import flag, json_body, number, text
from broker.rocketmq.statistics import Rates, offset_table, put_per_second, queue_key, stored_ms
from broker.topics.topics import TopicSettings, changed
from remoting.access.rights import ADMIN, INSPECT, LOCATE, PUBLISH
from remoting.protocol.bodies.controller_body import HaFollowing, HaState, encode_body
from remoting.protocol.errors import NotOffered, Refused
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records import names
from remoting.server.router import later
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.groups.feature import ConsumerGroups
    from broker.publishing.placement import Placement
    from broker.requests import RequestTools
    from broker.topics.topics import Topics

QUEUES_PER_TOPIC_MAX = 1_024
CLEANING_STEPS_MAX, CLEANING_PAUSE_S = 500, 0.01
"""Most steps of one cleaning request, and the pause between two; the broker's own upkeep continues what is left."""

GIB = 1 << 30
POOLS = ("send", "pull", "litePull")
"""RocketMQ's queues of requests before its threads; a loop has none, so nothing ever waits in one."""

_encode = msgspec.json.encode


@dataclass(frozen=True, slots=True)
class AdminRequests:
    """RocketMQ's tools: topics, groups, configuration, state."""

    tools: RequestTools
    topics: Topics
    groups: ConsumerGroups
    placement: Placement
    rates_in: Rates
    rates_out: Rates

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {
            Code.UPDATE_AND_CREATE_TOPIC: self.update_topic,
            Code.UPDATE_AND_CREATE_TOPIC_LIST: self.update_topics,
            Code.DELETE_TOPIC_IN_BROKER: self.delete_topic,
            Code.GET_ALL_TOPIC_CONFIG: self.all_topics,
            Code.GET_TOPIC_CONFIG: self.topic_config,
            Code.GET_BROKER_RUNTIME_INFO: self.runtime_info,
            Code.GET_BROKER_HA_STATUS: self.alone,
            Code.GET_TOPIC_STATS_INFO: self.topic_stats,
            Code.DELETE_EXPIRED_COMMITLOG: self.clean,
            Code.CLEAN_EXPIRED_CONSUMEQUEUE: self.clean,
            Code.CLEAN_UNUSED_TOPIC: self.clean,
            Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.update_group,
            Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: self.update_groups,
            Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.all_groups,
        }

    def update_topic(self, peer: Peer, command: Command) -> None:
        """17: create or change a topic, keeping attributes that are not named; answered when it has its route."""
        fields = command.fields
        name = text(fields, "topic")
        self.tools.authorizer.authorize(peer, command, ADMIN, name)
        self.topics.put(self._settings(name, fields, fields.get("attributes") or ""))
        self.tools.answers.reply_when_found(self.tools.store.end_position, (name,), peer, command.reply())

    def update_topics(self, peer: Peer, command: Command) -> None:
        """18: the same for the topics of a list, all of them or none."""
        listed = json_body(command).get("topicConfigList")
        if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed) or not listed:
            raise Refused(ResponseCode.INVALID_PARAMETER, "the body has no list of topics in topicConfigList")
        wanted: dict[str, TopicSettings] = {}
        for each in listed:
            name = str(each.get("topicName") or "")
            self.tools.authorizer.authorize(peer, command, ADMIN, name)
            fields = {key: "" if value is None else str(value) for key, value in each.items()}
            changes = each.get("attributes") or {}
            text_of = ",".join(f"{key}={value}" if key[:1] != "-" else key for key, value in dict(changes).items())
            wanted[name] = self._settings(name, fields, text_of)
        self.topics.check(wanted)
        for settings in wanted.values():
            self.topics.put(settings)
        self.tools.answers.reply_when_found(self.tools.store.end_position, tuple(wanted), peer, command.reply())

    def _settings(self, name: str, fields: Mapping[str, str], attributes: str) -> TopicSettings:
        """A topic as the fields of a request describe it. Refused where they are wrong."""
        _require_own(name)
        known = self.topics.get(name)
        kept = known.attributes if known is not None else {}
        config = TopicSettings(
            name=name,
            read_queue_count=number(fields, "readQueueNums", self.tools.config.default_queue_count),
            write_queue_count=number(fields, "writeQueueNums", self.tools.config.default_queue_count),
            permission=number(fields, "perm", 6),
            filter_type=fields.get("topicFilterType") or "SINGLE_TAG",
            system_flag=number(fields, "topicSysFlag", 0),
            order=flag(fields, "order"),
            attributes=changed(kept, attributes, created=known is None),
        )
        if not all(1 <= count <= QUEUES_PER_TOPIC_MAX for count in (config.read_queue_count, config.write_queue_count)):
            raise Refused(ResponseCode.INVALID_PARAMETER, f"a topic has 1 to {QUEUES_PER_TOPIC_MAX} queues")
        if config.takes_lite and names.parent_topic(name.encode()) != name.encode():
            remark = f"a topic of type LITE is named with letters, digits, - and _, not [{name}]"
            raise Refused(ResponseCode.INVALID_PARAMETER, remark)
        return config

    def delete_topic(self, peer: Peer, command: Command) -> None:
        """215: remove a topic with its queues, the groups' offsets there and their POP retry topics.

        It need not exist: not every broker group has every topic. The offsets go first: one that outlived the topic
        would make its group skip messages of a topic that is created again. A group that commits its first one while
        those of all groups are looked through is found by a second look, when the topic takes no more of them.
        """
        name = text(command.fields, "topic")
        self.tools.authorizer.authorize(peer, command, ADMIN, name)
        _require_own(name)
        later(peer, command, self._deleted(peer, command, name))

    async def _deleted(self, peer: Peer, command: Command, name: str) -> None:
        self.groups.commits.flush()
        found = await self.groups.offsets.by_group(name)
        queues = [(group, *queue) for group, offsets in found.items() for queue in offsets]
        self.groups.commits.flush()  # what came meanwhile is removed as well, not written after the topic is gone
        end = self.tools.store.end_position
        if self.topics.get(name) is not None:
            retries = {each.name: group for each in self.topics if (group := names.group_of_retry(each.name, name))}
            for retry, group in retries.items():
                queues += [(group, *queue) for queue in self.groups.offsets.of_group(group) if queue[0] == retry]
            self.groups.offsets.forget_queues(queues)
            end = max(self.topics.delete(each) for each in (*retries, name))
        late = [(group, *queue) for group, of in (await self.groups.offsets.by_group(name)).items() for queue in of]
        if late and self.topics.get(name) is None:
            end = self.groups.offsets.forget_queues(late)
        self.tools.answers.reply_at(end, peer, command.reply())

    def all_topics(self, _peer: Peer, command: Command) -> Command:
        """21: all topics with the version of the table."""
        table = {config.name: config for config in self.topics}
        body = {"topicConfigTable": table, "dataVersion": self.data_version(), "topicQueueMappingInfoMap": {}}
        return command.reply(body=_encode(body), fields={"totalTopicNum": str(len(table))})

    def topic_config(self, peer: Peer, command: Command) -> Command | None:
        """351: one topic. With `forWrite`, as our producers send, it is created by use as by a send, if allowed."""
        name = text(command.fields, "topic")
        self.tools.authorizer.authorize(peer, command, LOCATE, name)
        if not flag(command.fields, "forWrite") or self.topics.get(name) is not None:
            return command.reply(body=_encode(self.topics.require(name)))
        self.tools.authorizer.authorize(peer, command, PUBLISH, name)
        config = self.placement.choice.topic_for_write(name)
        self.tools.answers.reply_when_found(
            self.tools.store.end_position, (name,), peer, command.reply(body=_encode(config))
        )
        return None

    def runtime_info(self, _peer: Peer, command: Command) -> Command:
        """28: the table that `clusterList` and `brokerStatus` print; counters begin with the start of this broker."""
        store, identity, metrics = self.tools.store, self.tools.identity, self.tools.metrics
        taken, given = metrics.messages_in.value, metrics.messages_out.value
        bytes_in = store.end_position - identity.started_position
        usage = shutil.disk_usage(self.tools.config.data_directory)
        capacity = f"Total : {usage.total / GIB:.1f} GiB, Free : {usage.free / GIB:.1f} GiB."
        ratio = f"{1 - usage.free / usage.total:.4f}"
        table = {
            "brokerVersionDesc": "LightMQ",
            "brokerVersion": "479",
            "brokerActive": "true",
            "bootTimestamp": str(identity.started_ms),
            **_traffic("msgPutTotal", "putTps", taken, self.rates_in),
            **_traffic("msgGetTotal", "getTransferredTps", given, self.rates_out),
            "getTotalTps": _rates(self.rates_out),
            "runtime": _duration(self.tools.clock.now_ms() - identity.started_ms),
            "putMessageTimesTotal": str(taken),
            "putMessageSizeTotal": str(bytes_in),
            "putMessageAverageSize": f"{bytes_in / max(1, taken):.1f}",
            "commitLogDirCapacity": capacity,
            "remainHowManyDataToFlush": f"{store.end_position - store.confirm_position} B",
            "commitLogDiskRatio": ratio,
            "consumeQueueDiskRatio": ratio,
            "commitLogMinOffset": str(store.begin_position),
            "commitLogMaxOffset": str(store.confirm_position),
            "dispatchBehindBytes": "0",
            "pageCacheLockTimeMills": "0",
            **{f"{pool}ThreadPoolQueueSize": "0" for pool in POOLS},
            **{f"{pool}ThreadPoolQueueHeadWaitTimeMills": "0" for pool in POOLS},
            **{f"store_{name}": str(value) for name, value in store.metrics().items()},
        }
        return command.reply(body=_encode({"table": table}))

    def alone(self, peer: Peer, command: Command) -> Command:
        """907 at a broker that is no member of a group: a master without replicas. Members answer it themselves."""
        self.tools.authorizer.authorize(peer, command, INSPECT, "replicas")
        end = self.tools.store.end_position
        return command.reply(body=encode_body(HaState(True, end, 0, [], HaFollowing())))

    def clean(self, peer: Peer, command: Command) -> None:
        """306, 316, 329: a round of upkeep now, which deletes the segments and index runs that are over.

        It removes what the next rounds would. Queues of deleted topics went with the topics, so 316 finds none.
        """
        self.tools.authorizer.authorize(peer, command, ADMIN, "clean")
        later(peer, command, self._cleaned(command))

    async def _cleaned(self, command: Command) -> Command:
        store, before = self.tools.store, self.tools.store.begin_position
        for _ in range(CLEANING_STEPS_MAX):
            if not store.maintain(self.tools.clock.now_ms()):
                break
            await asyncio.sleep(CLEANING_PAUSE_S)
        return command.reply(remark=f"{store.begin_position - before} bytes of log were over and are deleted")

    def topic_stats(self, _peer: Peer, command: Command) -> Command:
        """202: offsets of every queue of a topic, the time of its newest message, and its rate."""
        store, topic = self.tools.store, self.topics.require(text(command.fields, "topic")).name
        queue_ids = self.topics.queue_ids(topic)
        table = []
        for index, queue_id in enumerate(queue_ids):
            low, high = store.reading.bounds(queue_id)
            last_ms = stored_ms(store, queue_id, high - 1, low, high)
            numbers = {"minOffset": low, "maxOffset": high, "lastUpdateTimestamp": last_ms}
            table.append((queue_key(self.tools.config.broker_name, topic, index), numbers))
        rate = put_per_second(store, queue_ids, self.tools.clock.now_ms())
        return command.reply(body=offset_table(command, table, "topicPutTps", rate))

    def update_group(self, peer: Peer, command: Command) -> None:
        """200: create or change a subscription group."""
        self._put_groups(peer, command, [json_body(command)])

    def update_groups(self, peer: Peer, command: Command) -> None:
        """225: the same for the groups of a list, all of them or none."""
        listed = json_body(command).get("groupConfigList")
        if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed) or not listed:
            raise Refused(ResponseCode.INVALID_PARAMETER, "the body has no list of groups in groupConfigList")
        self._put_groups(peer, command, listed)

    def _put_groups(self, peer: Peer, command: Command, bodies: list[dict[str, Any]]) -> None:
        for body in bodies:
            self.tools.authorizer.authorize(peer, command, ADMIN, str(body.get("groupName")))
        configs = [self._group_of(body) for body in bodies]
        self.groups.groups.check(config.group_name for config in configs)
        for config in configs:
            self.groups.groups.put(config)
        topics = [retry_topic(config.group_name) for config in configs]
        self.tools.answers.reply_when_found(self.tools.store.end_position, topics, peer, command.reply())

    def _group_of(self, body: dict[str, Any]) -> GroupConfig:
        """A group as its JSON describes it, with the attributes that it does not name. Refused where it is wrong."""
        policy = body.get("groupRetryPolicy")
        if isinstance(policy, dict) and any(value for key, value in policy.items() if key != "type"):
            remark = "retry policies of a group are not offered by this broker: retries follow the delay levels"
            raise NotOffered(ResponseCode.INVALID_PARAMETER, remark)
        try:
            config = msgspec.convert(body, GroupConfig, strict=False)
        except msgspec.ValidationError as error:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"the group's configuration is malformed: {error}") from error
        known = self.groups.groups.get(config.group_name)
        attributes = changed_attributes(known.attributes if known is not None else {}, config.attributes)
        return msgspec.structs.replace(config, attributes=attributes)

    def all_groups(self, _peer: Peer, command: Command) -> Command:
        """201: all subscription groups."""
        table = {config.group_name: config for config in self.groups.groups}
        return command.reply(body=_encode({"subscriptionGroupTable": table, "dataVersion": self.data_version()}))

    def data_version(self) -> dict[str, int]:
        """Version of the topic table: the epoch, the start of this broker, the number of changes since."""
        return {
            "stateVersion": self.tools.store.epoch,
            "timestamp": self.tools.identity.started_ms,
            "counter": self.topics.version,
        }


def _require_own(name: str) -> None:
    """Refused: the name is empty, or belongs to RocketMQ."""
    if not name.strip():
        raise Refused(ResponseCode.INVALID_PARAMETER, "The specified topic is blank.")
    if name in names.CONFLICTING_TOPICS or names.forbids_sends(name):
        raise Refused(ResponseCode.INVALID_PARAMETER, f"The topic[{name}] is conflict with system topic.")


def _traffic(total: str, rate: str, now: int, rates: Rates) -> dict[str, str]:
    return {
        f"{total}YesterdayMorning": str(rates.yesterday_morning),
        f"{total}TodayMorning": str(rates.today_morning),
        f"{total}TodayNow": str(now),
        rate: _rates(rates),
    }


def _rates(rates: Rates) -> str:
    """RocketMQ's form: three numbers, over `SPANS_S`."""
    return " ".join(f"{each:.1f}" for each in rates.per_second())


def _duration(passed_ms: int) -> str:
    minutes, seconds = divmod(passed_ms // 1_000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"
