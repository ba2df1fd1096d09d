"""Administration with RocketMQ's tools: topics (17, 21, 215, 351), configuration (25, 26), state (28, 202).

Bodies are RocketMQ's JSON. Where RocketMQ writes an object as a key (`{{"topic":..}:{..}}`), a client of language JAVA
gets exactly that, everybody else standard JSON with the queue as text. Configuration is read-only at run time: 25 is
refused and says so.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import msgspec

from broker.api.access import ADMIN, LOCATE, PUBLISH
from broker.api.clients import json_body
from broker.api.fields import flag, number, text
from broker.api.traffic_stats import put_per_second
from broker.meta.groups import GroupConfig, retry_topic
from broker.meta.topic_attributes import changed
from broker.meta.topics import TopicConfig
from broker.store.errors import StoreError
from remoting.protocol import fastjson
from remoting.protocol.codes import ResponseCode
from remoting.protocol.commands import Command
from remoting.protocol.errors import Refused
from remoting.protocol.names import DLQ_PREFIX, RETRY_PREFIX
from remoting.protocol.record import RecordView
from remoting.transport.contracts import Peer
from runtime.config import flatten

if TYPE_CHECKING:
    from broker.api.context import Broker
    from broker.meta.rates import Rates

QUEUES_PER_TOPIC_MAX = 1_024
SECRET_KEYS = ("access_keys",)

_encode = msgspec.json.encode


def update_topic(broker: Broker, peer: Peer, command: Command) -> None:
    """17: create or change a topic; attributes that are not named stay; answered when it has its route."""
    fields = command.fields
    name = text(fields, "topic")
    broker.authorizer.authorize(peer, command, ADMIN, name)
    known = broker.topics.get(name)
    kept = known.attributes if known is not None else {}
    config = TopicConfig(
        name=name,
        read_queue_count=number(fields, "readQueueNums", broker.config.default_queue_count),
        write_queue_count=number(fields, "writeQueueNums", broker.config.default_queue_count),
        permission=number(fields, "perm", 6),
        filter_type=fields.get("topicFilterType") or "SINGLE_TAG",
        system_flag=number(fields, "topicSysFlag", 0),
        order=flag(fields, "order"),
        attributes=changed(kept, fields.get("attributes") or "", created=known is None),
    )
    if not 1 <= config.read_queue_count <= QUEUES_PER_TOPIC_MAX or not config.write_queue_count >= 1:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"a topic has 1 to {QUEUES_PER_TOPIC_MAX} queues")
    if config.write_queue_count > QUEUES_PER_TOPIC_MAX:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"a topic has 1 to {QUEUES_PER_TOPIC_MAX} queues")
    broker.topics.put(config)
    broker.reply_found_at(broker.store.end_position, (name,), peer, command.reply())


def delete_topic(broker: Broker, peer: Peer, command: Command) -> None:
    """215: remove a topic and its queues. Those of a group may be gone already."""
    name = text(command.fields, "topic")
    broker.authorizer.authorize(peer, command, ADMIN, name)
    if name.startswith((RETRY_PREFIX, DLQ_PREFIX)) and broker.topics.get(name) is None:
        broker.reply_at(broker.store.end_position, peer, command.reply())
        return
    broker.reply_at(broker.topics.delete(name), peer, command.reply())


def all_topics(broker: Broker, _peer: Peer, command: Command) -> Command:
    """21: all topics with the version of the table."""
    table = {config.name: config for config in broker.topics}
    body = {"topicConfigTable": table, "dataVersion": data_version(broker), "topicQueueMappingInfoMap": {}}
    return command.reply(body=_encode(body), fields={"totalTopicNum": str(len(table))})


def topic_config(broker: Broker, peer: Peer, command: Command) -> Command | None:
    """351: one topic. Asked with `forWrite`, as our producers do, it is created by use as by a send, if that may be."""
    name = text(command.fields, "topic")
    broker.authorizer.authorize(peer, command, LOCATE, name)
    if not flag(command.fields, "forWrite") or broker.topics.get(name) is not None:
        return command.reply(body=_encode(broker.topics.require(name)))
    broker.authorizer.authorize(peer, command, PUBLISH, name)
    config = broker.placement.topic_for_write(name)
    broker.reply_found_at(broker.store.end_position, (name,), peer, command.reply(body=_encode(config)))
    return None


def update_config(broker: Broker, peer: Peer, command: Command) -> Command:
    """25: refused; options are set in the file, the environment or by flags."""
    broker.authorizer.authorize(peer, command, ADMIN, "config")
    return command.reply(
        ResponseCode.NO_PERMISSION,
        "options are read at start: change the configuration file, the environment or the flags and restart",
    )


def get_config(broker: Broker, peer: Peer, command: Command) -> Command:
    """26: every option as properties text; secrets are left out."""
    broker.authorizer.authorize(peer, command, ADMIN, "config")
    lines = [f"{key}={value}" for key, value in flatten(broker.config) if key not in SECRET_KEYS]
    fields = {"version": _encode(data_version(broker)).decode()}
    return command.reply(body="\n".join(lines).encode(), fields=fields)


def runtime_info(broker: Broker, _peer: Peer, command: Command) -> Command:
    """28: the table that `clusterList` and `brokerStatus` print; counts are since the start of this broker."""
    store = broker.store
    taken = broker.metrics.messages_in.value
    usage = shutil.disk_usage(broker.config.data_directory)
    ratio = f"{1 - usage.free / usage.total:.4f}"
    table = {
        "brokerVersionDesc": "LightMQ",
        "brokerVersion": "479",
        "brokerActive": "true",
        "bootTimestamp": str(broker.started_ms),
        **_traffic("msgPutTotal", "putTps", broker.metrics.messages_in.value, broker.rates_in),
        **_traffic("msgGetTotal", "getTransferredTps", broker.metrics.messages_out.value, broker.rates_out),
        "putMessageAverageSize": f"{(store.end_position - broker.started_position) / max(1, taken):.1f}",
        "commitLogDiskRatio": ratio,
        "consumeQueueDiskRatio": ratio,
        "commitLogMinOffset": str(store.begin_position),
        "commitLogMaxOffset": str(store.confirm_position),
        "dispatchBehindBytes": "0",
        "pageCacheLockTimeMills": "0",
        **{f"{pool}ThreadPoolQueueSize": "0" for pool in ("send", "pull")},
        **{f"{pool}ThreadPoolQueueHeadWaitTimeMills": "0" for pool in ("send", "pull")},
        **{f"store_{name}": str(value) for name, value in store.metrics().items()},
    }
    return command.reply(body=_encode({"table": table}))


def _traffic(total: str, rate: str, now: int, rates: Rates) -> dict[str, str]:
    return {
        f"{total}YesterdayMorning": str(rates.yesterday_morning),
        f"{total}TodayMorning": str(rates.today_morning),
        f"{total}TodayNow": str(now),
        rate: " ".join(f"{each:.1f}" for each in rates.per_second()),
    }


def topic_stats(broker: Broker, _peer: Peer, command: Command) -> Command:
    """202: offsets of every queue of a topic, when it got its newest message, and how many of late."""
    topic = broker.topics.require(text(command.fields, "topic")).name
    table = []
    for index, queue_id in enumerate(broker.topics.queue_ids(topic)):
        low, high = broker.store.bounds(queue_id)
        last_ms = stored_ms(broker, queue_id, high - 1, low, high)
        numbers = {"minOffset": low, "maxOffset": high, "lastUpdateTimestamp": last_ms}
        table.append((queue_key(broker, topic, index), numbers))
    return command.reply(body=offset_table(command, table, "topicPutTps", put_per_second(broker, topic)))


def stored_ms(broker: Broker, queue: int, offset: int, low: int, high: int) -> int:
    """When a message was stored; 0 where there is none, or none that can be read."""
    if not low <= offset < high:
        return 0
    try:
        records = broker.store.read(queue, offset, 1, 1).records
    except StoreError:
        return 0
    return RecordView(records[0]).store_ms if records else 0


def update_group(broker: Broker, peer: Peer, command: Command) -> None:
    """200: create or change a subscription group."""
    body = json_body(command)
    broker.authorizer.authorize(peer, command, ADMIN, str(body.get("groupName")))
    policy = body.get("groupRetryPolicy")
    if isinstance(policy, dict) and any(value for key, value in policy.items() if key != "type"):
        remark = "retry policies of a group are not offered by this broker: retries follow the delay levels"
        raise Refused(ResponseCode.INVALID_PARAMETER, remark)
    try:
        config = msgspec.convert(body, GroupConfig, strict=False)
    except msgspec.ValidationError as error:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"the group's configuration is malformed: {error}") from error
    broker.groups.put(config)
    broker.reply_found_at(broker.store.end_position, (retry_topic(config.group_name),), peer, command.reply())


def all_groups(broker: Broker, _peer: Peer, command: Command) -> Command:
    """201: all subscription groups."""
    table = {config.group_name: config for config in broker.groups}
    return command.reply(body=_encode({"subscriptionGroupTable": table, "dataVersion": data_version(broker)}))


def data_version(broker: Broker) -> dict[str, int]:
    """Version of the topic table: the epoch, the start of this broker, the number of changes since."""
    return {"stateVersion": broker.store.epoch, "timestamp": broker.started_ms, "counter": broker.topics.version}


def queue_key(broker: Broker, topic: str, index: int) -> dict[str, Any]:
    """RocketMQ's MessageQueue object."""
    return {"brokerName": broker.config.broker_name, "queueId": index, "topic": topic}


def offset_table(
    command: Command, table: list[tuple[dict[str, Any], dict[str, int]]], rate: str, per_second: float
) -> bytes:
    """`{"offsetTable":{queue:numbers},rate:per_second}`; the queue is an object as key for Java, else text."""
    if command.language != "JAVA":
        return _encode({"offsetTable": {_encode(key).decode(): value for key, value in table}, rate: per_second})
    return b'{"offsetTable":%s,"%s":%s}' % (fastjson.object_keys(table), rate.encode(), _encode(per_second))
