"""One request of every code that a key with rights to `plant/#` alone must be refused.

They aim at topics, groups, sinks, brokers and sessions of others. `tests/arch` compares the table with the table of
rights, so that no code is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from remoting.protocol.bodies.operating_body import SparkReport
from remoting.protocol.bodies.pull_body import (
    QueueBoundsRequest,
    RowFilter,
    encode_bounds_request,
    encode_filtered_pull,
    encode_multi_pull,
    encode_range_pull,
    encode_records_at,
    encode_row_filter,
)
from remoting.protocol.bodies.session_body import SessionOpen, encode
from remoting.protocol.bodies.sink_body import AbortBatch, CommitBatch, Ledger
from remoting.protocol.bodies.sink_body import encode as encode_sink
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.image import encode_mqtt_image

SHOWN_IN_PART = frozenset(
    {
        Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, Code.GET_TOPICS_BY_CLUSTER, Code.TOPIC_LIST,
        Code.GET_CONSUME_STATS, Code.GET_BROKER_CONSUME_STATS, Code.GET_BROKER_CLUSTER_INFO, Code.SUBSCRIBE_ROUTES,
        Code.CONTROLLER_GET_METADATA_INFO, Code.UNREGISTER_CLIENT, Code.CHECK_CLIENT_CONFIG,
    }
)  # fmt: skip
"""Codes that any right permits: the answer leaves out what the right does not cover. Without any right they are
refused."""


@dataclass(frozen=True)
class Target:
    """What the attacker tries to reach."""

    broker: str
    address: str
    cluster: str = "DefaultCluster"
    topic: str = "secret"
    queue_id: int = 1
    position: int = 0


def attempts(target: Target) -> dict[int, Command]:
    """Request code -> a whole request."""
    made = {**_messages(target), **_groups(target), **_sessions(target), **_routes(target), **_controllers(target)}
    return {code: Command(code, fields=dict(fields), body=body) for code, (fields, body) in made.items()}


Parts = tuple[Mapping[str, str], bytes]
ACL_BODY = b'{"policies":[{"entries":[{"resource":"*","actions":["All"],"decision":"Allow"}]}]}'


def _messages(target: Target) -> dict[int, Parts]:
    topic, queue = {"topic": target.topic}, {"topic": target.topic, "queueId": "0"}
    entry = b"".join([encode_mqtt_image(f"{target.topic}/1".encode(), b"x", 1, 0, b"etl")])
    send = {"producerGroup": "p", "defaultTopic": "TBW102", "defaultTopicQueueNums": "1", "sysFlag": "0",
            "bornTimestamp": "0", "flag": "0", "properties": "", **queue}  # fmt: skip
    short = {"a": "p", "b": target.topic, "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "0", "h": "0", "i": ""}
    pull = {"consumerGroup": "plant", "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "0", "commitOffset": "0",
            "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0", **queue}  # fmt: skip
    decision = {"tranStateTableOffset": "0", "commitLogOffset": "0", "commitOrRollback": "8"}
    rows = encode_row_filter(RowFilter())
    return {
        Code.SEND_MESSAGE: (send, b"x"),
        Code.SEND_MESSAGE_V2: (short, b"x"),
        Code.SEND_BATCH_MESSAGE: (short | {"m": "true"}, b"x"),
        Code.END_TRANSACTION: (send | decision, b""),
        **dict.fromkeys((Code.RECALL_MESSAGE, Code.RESCHEDULE_MESSAGE), (topic | {"recallHandle": "x"}, b"")),
        Code.SEND_REPLY_MESSAGE: (send, b"x"),
        Code.SEND_REPLY_MESSAGE_V2: (short, b"x"),
        Code.APPEND_MANY: ({}, entry),
        Code.CHECK_PUBLISH: (topic, b""),
        Code.STAGE: ({"sink": "others", "batch": "0", "partition": "0", "attempt": "0"}, entry),
        Code.COMMIT_BATCH: ({}, encode_sink(CommitBatch("others", 0, []))),
        Code.ABORT_BATCH: ({}, encode_sink(AbortBatch("others", 0))),
        Code.LEDGER: ({}, encode_sink(Ledger("others"))),
        Code.PULL_MESSAGE: (pull, b""),
        Code.LITE_PULL_MESSAGE: (pull, b""),
        Code.MULTI_PULL: ({}, encode_multi_pull([(target.queue_id, 0, 1, 1_024)])),
        Code.RANGE_PULL: ({}, encode_range_pull(target.queue_id, 0, 1, 1_024)),
        Code.FILTERED_PULL: ({}, encode_filtered_pull(target.queue_id, 0, 1, 1_024, rows)),
        Code.RECORDS_AT: ({}, encode_records_at([target.position])),
        Code.QUEUE_BOUNDS: ({}, encode_bounds_request(QueueBoundsRequest(topics=[target.topic]))),
        Code.SEARCH_OFFSET_BY_TIMESTAMP: (queue | {"timestamp": "0"}, b""),
        Code.GET_MAX_OFFSET: (queue, b""),
        Code.GET_MIN_OFFSET: (queue, b""),
        Code.GET_EARLIEST_MSG_STORETIME: (queue, b""),
        Code.VIEW_MESSAGE_BY_ID: ({"offset": str(target.position)}, b""),
        Code.QUERY_MESSAGE: (topic | {"key": "k"}, b""),
        Code.QUERY_CONSUME_QUEUE: (queue | {"index": "0", "count": "1"}, b""),
        Code.GET_TOPIC_CONFIG: (topic, b""),
        Code.TOPIC_LIST: ({}, b""),
        Code.UPDATE_AND_CREATE_TOPIC: (topic | {"readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}, b""),
        Code.DELETE_TOPIC_IN_BROKER: (topic, b""),
        Code.GET_ALL_TOPIC_CONFIG: ({}, b""),
        Code.GET_TOPIC_STATS_INFO: (topic, b""),
        Code.VIEW_BROKER_STATS_DATA: ({"statsName": "TOPIC_PUT_NUMS", "statsKey": topic["topic"]}, b""),
        Code.GET_BROKER_RUNTIME_INFO: ({}, b""),
        Code.GET_BROKER_CONFIG: ({}, b""),
        Code.UPDATE_BROKER_CONFIG: ({}, b""),
        Code.CLUSTER_STATUS: ({}, b""),
        Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: ({}, b""),
    }


def _groups(target: Target) -> dict[int, Parts]:
    group = {"consumerGroup": "others", "group": "others", "topic": target.topic, "queueId": "0", "commitOffset": "0"}
    locks = b'{"consumerGroup":"others","clientId":"c","mqSet":[]}'
    beat = msgspec.json.encode({"clientID": "c", "consumerDataSet": [{"groupName": "others"}]})
    back = {"group": "others", "offset": str(target.position), "delayLevel": "0", "originTopic": target.topic}
    copied = {"topic": target.topic, "queueId": "0", "source": "s", "expected": "0"}
    return {
        **dict.fromkeys((Code.CLIENT_LIST, Code.COPIED_QUEUES), ({}, b"")),
        **dict.fromkeys((Code.COPY_MESSAGES, Code.BEGIN_RETURN), (copied, b"")),
        Code.CLAIM_RETURN: (copied | {"holder": "h", "begin": "0", "end": "0"}, b""),
        **dict.fromkeys((Code.TELL_FOLLOWER, Code.FOLLOWER), ({"source": "old"}, b"{}")),
        Code.QUERY_CONSUMER_OFFSET: (group, b""),
        Code.UPDATE_CONSUMER_OFFSET: (group, b""),
        Code.GET_CONSUMER_LIST_BY_GROUP: (group, b""),
        Code.QUERY_ASSIGNMENT: ({}, msgspec.json.encode({"topic": target.topic, "consumerGroup": "others"})),
        Code.DELETE_SUBSCRIPTIONGROUP: ({"groupName": "others"}, b""),
        Code.LOCK_BATCH_MQ: ({}, locks),
        Code.UNLOCK_BATCH_MQ: ({}, locks),
        Code.CONSUMER_SEND_MSG_BACK: (back, b""),
        Code.GET_CONSUME_STATS: (group, b""),
        Code.GET_BROKER_CONSUME_STATS: ({}, b""),
        Code.HEART_BEAT: ({}, beat),
        Code.UNREGISTER_CLIENT: ({"clientID": "c", "consumerGroup": "others"}, b""),
        Code.CHECK_CLIENT_CONFIG: ({}, b"{}"),
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: ({}, b'{"groupName":"others"}'),
        Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: ({}, b""),
        Code.GET_CONSUMER_CONNECTION_LIST: (group, b""),
        Code.GET_PRODUCER_CONNECTION_LIST: (group | {"producerGroup": "others"}, b""),
        Code.INVOKE_BROKER_TO_RESET_OFFSET: (group | {"timestamp": "0", "isForce": "true"}, b""),
        Code.QUERY_TOPIC_CONSUME_BY_WHO: (group, b""),
        Code.QUERY_TOPICS_BY_CONSUMER: (group, b""),
        Code.UPDATE_AND_CREATE_TOPIC_LIST: (
            {},
            msgspec.json.encode({"topicConfigList": [{"topicName": target.topic}]}),
        ),
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: ({}, b'{"groupConfigList":[{"groupName":"others"}]}'),
        Code.GET_SUBSCRIPTIONGROUP_CONFIG: (group, b""),
        Code.QUERY_SUBSCRIPTION_BY_CONSUMER: (group, b""),
        Code.QUERY_CONSUME_TIME_SPAN: (group, b""),
        Code.QUERY_CORRECTION_OFFSET: (group | {"compareGroup": "others"}, b""),
        Code.CLONE_GROUP_OFFSET: (group | {"srcGroup": "others", "destGroup": "third"}, b""),
        Code.GET_ALL_CONSUMER_OFFSET: ({}, b""),
        **dict.fromkeys((Code.DELETE_EXPIRED_COMMITLOG, Code.CLEAN_EXPIRED_CONSUMEQUEUE), ({}, b"")),
        Code.CLEAN_UNUSED_TOPIC: ({}, b""),
        Code.GET_ALL_PRODUCER_INFO: ({}, b""),
        Code.GET_CONSUMER_RUNNING_INFO: (group | {"clientId": "c"}, b""),
        Code.CONSUME_MESSAGE_DIRECTLY: (group | {"clientId": "c", "msgId": "0" * 32}, b""),
        Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: (group, b""),
        **_pops(group),
        **_lite(target),
    }


def _lite(target: Target) -> dict[int, Parts]:
    group = {"consumerGroup": "others", "group": "others", "clientId": "c", "topic": target.topic, "topK": "1"}
    pop = {**group, "maxMsgNum": "1", "invisibleTime": "1000", "pollTime": "0"}
    handle = {**group, "extraInfo": "0 1 1000 999 0 broker-a 0 0", "offset": "0", "queueId": "0", "liteTopic": "x"}
    change = {"action": "PARTIAL_ADD", "clientId": "c", "group": "others", "topic": target.topic}
    info = {**group, "parentTopic": target.topic, "liteTopic": "x", "maxCount": "1"}
    codes = (
        Code.GET_BROKER_LITE_INFO, Code.GET_PARENT_TOPIC_INFO, Code.GET_LITE_TOPIC_INFO, Code.GET_LITE_CLIENT_INFO,
        Code.GET_LITE_GROUP_INFO, Code.TRIGGER_LITE_DISPATCH,
    )  # fmt: skip
    return {
        Code.POP_LITE_MESSAGE: (pop, b""),
        Code.LITE_SUBSCRIPTION_CTL: ({}, msgspec.json.encode({"subscriptionSet": [change]})),
        Code.ACK_LITE_MESSAGE: (handle, b""),
        **dict.fromkeys(codes, (info, b"")),
    }


def _pops(group: Mapping[str, str]) -> dict[int, Parts]:
    pop = {**group, "maxMsgNums": "1", "invisibleTime": "1000", "pollTime": "0", "initMode": "0"}
    handle = {**group, "extraInfo": "0 1 1000 0 0 broker-a 0 0", "offset": "0", "invisibleTime": "1000"}
    ack = {"c": "others", "t": group["topic"], "r": "0", "so": 0, "q": 0, "rq": 0, "pt": 1, "it": 1_000, "b": "AQ=="}
    mode = {"topic": group["topic"], "consumerGroup": "others", "mode": "POP", "popShareQueueNum": 0}
    return {
        Code.POP_MESSAGE: (pop, b""),
        Code.PEEK_MESSAGE: (pop, b""),
        Code.NOTIFICATION: (pop, b""),
        Code.POLLING_INFO: (group, b""),
        Code.ACK_MESSAGE: (handle, b""),
        Code.CHANGE_MESSAGE_INVISIBLETIME: (handle, b""),
        Code.BATCH_ACK_MESSAGE: ({}, msgspec.json.encode({"brokerName": "broker-a", "acks": [ack]})),
        Code.SET_MESSAGE_REQUEST_MODE: ({}, msgspec.json.encode(mode)),
    }


def _sessions(target: Target) -> dict[int, Parts]:
    codes = (
        Code.SESSION_CLOSE, Code.SUBSCRIBE, Code.UNSUBSCRIBE, Code.SESSION_FLOW, Code.APPEND_OFFSETS, Code.WILL_WATCH,
        Code.WILL_VERDICT, Code.FOLLOW, Code.SHARED_TAKE, Code.SHARED_SETTLE, Code.HISTORY, Code.SESSION_LIST,
        Code.TIMERS, Code.PROXY_PRESENT, Code.PROXY_ANSWERED, Code.MQTT_CLIENTS, Code.PROXY_LIST,
        Code.RETAINED_LIST, Code.TOPIC_TREE, Code.AUDIT_LIST, Code.SPARK_QUERIES, Code.ACCESS_TEST, Code.QUOTAS,
        Code.ACCESS_RULES, Code.DEAD_LETTERS, Code.GROUP_LIST,
    )  # fmt: skip
    one = {"client": f"client of {target.topic}"}
    opened = encode(SessionOpen(f"client of {target.topic}", True, None, 0))
    acts = dict.fromkeys((Code.MQTT_KICK, Code.SESSION_END), (one, b""))
    acts[Code.RETAINED_CLEAR] = ({"topic": target.topic}, b"")
    acts[Code.RESEND_DEAD_LETTER] = ({"group": "others", "offset": "0"}, b"")
    acts[Code.TRACE_MESSAGE] = ({"id": str(target.position)}, b"")
    report = SparkReport("q", "r", "n", "running", places=[(target.topic, target.broker, 0, 1)])
    acts[Code.SPARK_REPORT] = ({}, encode(report))
    return {code: ({}, b"") for code in codes} | {Code.SESSION_OPEN: ({}, opened), **acts}


def _routes(target: Target) -> dict[int, Parts]:
    key = {"namespace": "n", "key": "k"}
    broker = {"clusterName": target.cluster, "brokerName": target.broker, "brokerAddr": target.address, "brokerId": "0"}
    cluster = {"cluster": target.cluster}
    return {
        Code.REGISTER_BROKER: (broker | {"brokerAddr": "127.0.0.1:1", "haServerAddr": ""}, b""),
        Code.UNREGISTER_BROKER: (broker, b""),
        Code.QUERY_DATA_VERSION: (broker, b'{"counter":0,"timestamp":0,"stateVersion":0}'),
        Code.BROKER_HEARTBEAT: (broker, b""),
        Code.GET_BROKER_MEMBER_GROUP: (broker, b""),
        Code.GET_BROKER_CLUSTER_INFO: ({}, b""),
        Code.SUBSCRIBE_ROUTES: ({}, b"{}"),
        Code.WIPE_WRITE_PERM_OF_BROKER: (broker, b""),
        Code.ADD_WRITE_PERM_OF_BROKER: (broker, b""),
        Code.GET_ROUTEINFO_BY_TOPIC: ({"topic": target.topic}, b""),
        Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: ({}, b""),
        Code.GET_TOPICS_BY_CLUSTER: (cluster, b""),
        Code.GET_SYSTEM_TOPIC_LIST_FROM_NS: ({}, b""),
        Code.DELETE_TOPIC_IN_NAMESRV: ({"topic": target.topic}, b""),
        Code.REGISTER_TOPIC_IN_NAMESRV: ({"topic": target.topic}, b"{}"),
        Code.PUT_KV_CONFIG: (key | {"value": "v"}, b""),
        Code.GET_KV_CONFIG: (key, b""),
        Code.DELETE_KV_CONFIG: (key, b""),
        Code.GET_KVLIST_BY_NAMESPACE: (key, b""),
        Code.UPDATE_NAMESRV_CONFIG: ({}, b""),
        Code.GET_NAMESRV_CONFIG: ({}, b""),
    }


_ACTING: dict[int, Parts] = {
    Code.MERGE_POPS: ({}, b'[["g","t",0,0,1,1,0,0]]'),
    Code.MERGE_GIVEN: ({}, b'[["g","t",0,0,0,1,1]]'),
    Code.MERGE_ESCAPED: ({}, b"[[0,0,0,0]]"),
    Code.MERGE_OFFSETS: ({}, b'[["g","t",0,99]]'),
    Code.MERGE_TRANSACTIONS: ({}, b'[[0,0,"g","C"]]'),
    Code.MERGE_LOCKS: ({}, b'[["g","t",0,99,"c"]]'),
    Code.AGREE_LOCKS: ({}, b'{"consumerGroup":"g","clientId":"c","mqSet":[{"topic":"t","queueId":0,"token":99}]}'),
}
"""What replicas ask that stood in for a master, or do."""


def _controllers(target: Target) -> dict[int, Parts]:
    group = {"clusterName": target.cluster, "brokerName": target.broker}
    return {
        Code.METRICS: ({}, b""),
        Code.CONTROLLER_ALTER_SYNC_STATE_SET: (
            group | {"masterBrokerId": "1", "masterEpoch": "1"},
            b'{"syncStateSet":[1],"syncStateSetEpoch":1}',
        ),
        Code.CONTROLLER_ELECT_MASTER: (group | {"brokerId": "2"}, b""),
        Code.CONTROLLER_REGISTER_BROKER: (group | {"brokerId": "1", "brokerAddress": "127.0.0.1:1"}, b""),
        Code.CONTROLLER_GET_REPLICA_INFO: (group, b""),
        Code.CONTROLLER_GET_METADATA_INFO: ({}, b""),
        Code.CONTROLLER_GET_SYNC_STATE_DATA: ({}, b"[]"),
        Code.CONTROLLER_GET_NEXT_BROKER_ID: (group, b""),
        Code.CONTROLLER_APPLY_BROKER_ID: (group | {"appliedBrokerId": "9", "registerCheckCode": "x"}, b""),
        Code.AGREED_USERS: (group, b"{}"),
        Code.CHANGE_USERS: (
            group,
            b'{"made_for":{},"origin":"o","states":[{"name":"intruder","user":{"secret":"x","type":"Super"}}]}',
        ),
        Code.LIST_CONTROLLERS: ({}, b""),
        Code.FORGET_GROUP: ({"brokerName": "broker-x"}, b""),
        Code.MQTT_GROUP: ({}, b""),
        Code.MOVE_MQTT: ({"brokerName": "broker-x"}, b""),
        Code.CHANGE_CONTROLLERS: ({"add": "n9@127.0.0.1:1@2"}, b""),
        Code.CLEAN_BROKER_DATA: (group | {"brokerControllerIdsToClean": "1", "isCleanLivingBroker": "true"}, b""),
        Code.UPDATE_CONTROLLER_CONFIG: ({}, b""),
        Code.AUTH_CREATE_USER: ({"username": "intruder"}, b'{"password":"x","userType":"Super"}'),
        Code.CREATED_USERS: ({}, b""),
        Code.CHECK_USER: ({}, b'["ann","a-secret"]'),
        Code.ADMIT_CLIENT: ({"clientLoopback": "true"}, b""),
        Code.AUTH_UPDATE_USER: ({"username": "ann"}, b'{"password":"x"}'),
        Code.AUTH_CREATE_ACL: ({"subject": "User:ann"}, ACL_BODY),
        Code.AUTH_UPDATE_ACL: ({"subject": "User:ann"}, ACL_BODY),
        **dict.fromkeys((Code.AUTH_DELETE_USER, Code.AUTH_GET_USER, Code.AUTH_LIST_USER), ({"username": "ann"}, b"")),
        **dict.fromkeys((Code.AUTH_DELETE_ACL, Code.AUTH_GET_ACL, Code.AUTH_LIST_ACL), ({"subject": "User:ann"}, b"")),
        Code.GET_CONTROLLER_CONFIG: ({}, b""),
        Code.NOTIFY_BROKER_ROLE_CHANGED: (
            {"masterEpoch": "99", "syncStateSetEpoch": "99", "masterBrokerId": "9", "brokerName": target.broker},
            b'{"syncStateSet":[9],"syncStateSetEpoch":99}',
        ),
        Code.GET_BROKER_EPOCH_CACHE: ({}, b""),
        Code.ELECTION: (
            {},
            b'{"cluster":"c","group":"g","members":"","sender":"n1","kind":"beat","term":9,"place":[9,9]}',
        ),
        **_ACTING,
        Code.GET_BROKER_HA_STATUS: ({}, b""),
    }
