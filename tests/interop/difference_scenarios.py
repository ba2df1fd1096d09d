"""Requests whose answers are compared between RocketMQ's servers and ours: one script for both.

A scenario is a function that sends requests by `Session.ask`, each under a name. It may use what earlier answers said
(offsets, ids, handles), so the same script runs against different servers. `answers` are kept by name: code, header
fields and body. No scenario depends on times: what is volatile is declared by the test that compares.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from remoting.client.blocking import BlockingConnection
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.commands import Command

JAVA_VERSION = 513
"""RocketMQ 5.5.0."""
DISPATCH_TIMEOUT_S = 20


@dataclass
class Session:
    """The requests of one run and their answers."""

    broker: BlockingConnection
    name_server: BlockingConnection
    answers: dict[str, Command] = field(default_factory=dict)

    def ask(self, name: str, code: int, body: object = b"", *, at: str = "broker", **fields: object) -> Command:
        """Send a request of a Java client and keep its answer under `name`."""
        assert name not in self.answers, f"two requests are named {name}"
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        command = Command(code, fields={key: str(value) for key, value in fields.items()}, body=raw)
        command.language, command.version = "JAVA", JAVA_VERSION
        connection = self.broker if at == "broker" else self.name_server
        reply = connection.request(command)
        answer = Command(reply.code, remark=reply.remark, fields=dict(reply.fields), body=bytes(reply.body))
        self.answers[name] = answer
        return answer

    def until(self, topic: str, queue: int, end: int) -> None:
        """Wait until a queue ends there: RocketMQ's broker adds messages to queues some time after it answers."""
        deadline = time.monotonic() + DISPATCH_TIMEOUT_S
        asked = {"topic": topic, "queueId": str(queue)}
        while int(self.broker.request(Command(Code.GET_MAX_OFFSET, fields=dict(asked))).fields["offset"]) < end:
            assert time.monotonic() < deadline, f"queue {topic}/{queue} does not reach {end}"
            time.sleep(0.01)


def properties(**pairs: str) -> str:
    """Properties of a message as a client writes them."""
    return "".join(f"{name}\x01{value}\x02" for name, value in pairs.items())


def sent(topic: str, queue: int = 0, **more: object) -> dict[str, object]:
    """Fields of SEND_MESSAGE."""
    fields = {
        "producerGroup": "writers", "topic": topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": 4,
        "queueId": queue, "sysFlag": 0, "bornTimestamp": 1_700_000_000_000, "flag": 0, "properties": "",
        "reconsumeTimes": 0, "unitMode": "false", "batch": "false",
    }  # fmt: skip
    return {**fields, **more}


SHORT = {
    "producerGroup": "a", "topic": "b", "defaultTopic": "c", "defaultTopicQueueNums": "d", "queueId": "e",
    "sysFlag": "f", "bornTimestamp": "g", "flag": "h", "properties": "i", "reconsumeTimes": "j", "unitMode": "k",
    "batch": "m",
}  # fmt: skip


def short(fields: Mapping[str, object]) -> dict[str, object]:
    """The same for SEND_MESSAGE_V2."""
    return {SHORT[name]: value for name, value in fields.items()}


def pulled(topic: str, queue: int = 0, offset: int = 0, **more: object) -> dict[str, object]:
    """Fields of PULL_MESSAGE."""
    fields = {
        "consumerGroup": "readers", "topic": topic, "queueId": queue, "queueOffset": offset, "maxMsgNums": 32,
        "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0,
        "expressionType": "TAG",
    }  # fmt: skip
    return {**fields, **more}


def topics(session: Session) -> None:
    """Topics are created, shown, changed."""
    ask = session.ask
    made = {"readQueueNums": 2, "writeQueueNums": 2, "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0}
    made |= {"order": "false", "defaultTopic": "TBW102"}
    ask("create", Code.UPDATE_AND_CREATE_TOPIC, topic="t", **made)
    ask("create odd", Code.UPDATE_AND_CREATE_TOPIC, topic="odd", **{**made, "readQueueNums": 1, "writeQueueNums": 1})
    ask("create again", Code.UPDATE_AND_CREATE_TOPIC, topic="t", **made)
    ask("create: bad name", Code.UPDATE_AND_CREATE_TOPIC, topic="no good!", **made)
    ask("create: empty name", Code.UPDATE_AND_CREATE_TOPIC, topic="", **made)
    ask("create: system topic", Code.UPDATE_AND_CREATE_TOPIC, topic="SELF_TEST_TOPIC", **made)
    ask("create: long name", Code.UPDATE_AND_CREATE_TOPIC, topic="n" * 128, **made)
    ask("topic", Code.GET_TOPIC_CONFIG, topic="t")
    ask("topic: unknown", Code.GET_TOPIC_CONFIG, topic="unknown")
    ask(
        "topic list", Code.UPDATE_AND_CREATE_TOPIC_LIST, {"topicConfigList": [{"topicName": "l1"}, {"topicName": "l2"}]}
    )
    ask("topic list: bad name", Code.UPDATE_AND_CREATE_TOPIC_LIST, {"topicConfigList": [{"topicName": "no good!"}]})
    ask("delete", Code.DELETE_TOPIC_IN_BROKER, topic="l1")
    ask("delete: unknown", Code.DELETE_TOPIC_IN_BROKER, topic="unknown")
    ask("delete: empty", Code.DELETE_TOPIC_IN_BROKER, topic="")
    ask("topic stats", Code.GET_TOPIC_STATS_INFO, topic="t")
    ask("topic stats: unknown", Code.GET_TOPIC_STATS_INFO, topic="unknown")


def sends(session: Session) -> None:
    """Messages in all forms, and what no broker may take."""
    ask = session.ask
    named = properties(KEYS="k1", TAGS="a", UNIQ_KEY="0" * 31 + "1", user="u")
    ask("send", Code.SEND_MESSAGE, b"one", **sent("t", properties=named))
    ask("send v2", Code.SEND_MESSAGE_V2, b"two", **short(sent("t", properties=properties(TAGS="b"))))
    ask("send: other queue", Code.SEND_MESSAGE, b"three", **sent("t", 1))
    ask("send: any queue", Code.SEND_MESSAGE_V2, b"four", **short(sent("odd", -1)))
    ask("send: bad queue", Code.SEND_MESSAGE, b"x", **sent("t", 9))
    ask("send: empty body", Code.SEND_MESSAGE, b"", **sent("odd"))
    ask("send: new topic", Code.SEND_MESSAGE, b"x", **sent("by_use"))
    ask("send: bad topic", Code.SEND_MESSAGE, b"x", **sent("no good!"))
    ask("send: system topic", Code.SEND_MESSAGE, b"x", **sent("SCHEDULE_TOPIC_XXXX"))
    ask("send: too large", Code.SEND_MESSAGE, b"x" * (4 * 1024 * 1024 + 1), **sent("t"))
    ask("send: many properties", Code.SEND_MESSAGE, b"x", **sent("t", properties=properties(p="v" * 40_000)))
    ask("send: negative delay level", Code.SEND_MESSAGE, b"x", **sent("odd", properties=properties(DELAY="-1")))
    ask("send: no group", Code.SEND_MESSAGE, b"x", **sent("by_use", 1, producerGroup=""))
    ask("send: retry of unknown group", Code.SEND_MESSAGE, b"x", **sent("%RETRY%nobody"))
    missing = sent("odd")
    del missing["queueId"]
    ask("send: field missing", Code.SEND_MESSAGE, b"x", **missing)
    ask("send: no number", Code.SEND_MESSAGE, b"x", **sent("t", sysFlag="x"))
    inner = [message(b"b1", properties(TAGS="a")), message(b"b2", "")]
    ask("batch", Code.SEND_BATCH_MESSAGE, b"".join(inner), **short(sent("t", batch="true")))
    ask("batch: cut", Code.SEND_BATCH_MESSAGE, inner[0][:-3], **short(sent("t", batch="true")))
    ask(
        "transaction ended: unknown",
        Code.END_TRANSACTION,
        producerGroup="writers",
        tranStateTableOffset=77,
        commitLogOffset=999_999,
        commitOrRollback=8,
        fromTransactionCheck="false",
        msgId="",
        transactionId="",
    )
    ask(
        "recall: forged", Code.RECALL_MESSAGE, producerGroup="writers", topic="t", recallHandle="eA==", bname="broker-a"
    )


def message(body: bytes, text: str) -> bytes:
    """One message inside a batch."""
    raw = text.encode()
    size = 4 + 4 + 4 + 4 + 4 + len(body) + 2 + len(raw)
    numbers = b"".join(number.to_bytes(4, "big") for number in (size, 0, 0, 0, len(body)))
    return numbers + body + len(raw).to_bytes(2, "big") + raw


def pulls(session: Session) -> None:
    """Messages are read, from everywhere in a queue and beyond it."""
    ask, pull = session.ask, Code.PULL_MESSAGE
    session.until("t", 0, 4)
    session.until("t", 1, 1)
    ask("pull: group unknown", pull, **pulled("t", consumerGroup="nobody"))
    ask("group", Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {"groupName": "readers"})
    ask("group of strays", Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {"groupName": "strays"})
    ask("pull", pull, **pulled("t"))
    ask("pull: one", pull, **pulled("t", maxMsgNums=1))
    ask("pull: second", pull, **pulled("t", offset=1, maxMsgNums=1))
    ask("pull: by tag", pull, **pulled("t", subscription="a"))
    ask("pull: by two tags", pull, **pulled("t", subscription="a || b"))
    ask("pull: no match", pull, **pulled("t", subscription="nothing"))
    ask("pull: at the end", pull, **pulled("t", 1, 1))
    ask("pull: beyond the end", pull, **pulled("t", 1, 99))
    ask("pull: negative", pull, **pulled("t", 1, -5))
    ask("pull: bad queue", pull, **pulled("t", 9))
    ask("pull: unknown topic", pull, **pulled("unknown"))
    ask("pull: sql", pull, **pulled("t", subscription="user = 'u'", expressionType="SQL92"))
    ask("pull: bad sql", pull, **pulled("t", subscription="user = ", expressionType="SQL92"))
    ask("pull: unknown language", pull, **pulled("t", subscription="x", expressionType="XPATH"))
    ask("pull: no subscription", pull, **pulled("t", sysFlag=0))
    ask("pull: lite", Code.LITE_PULL_MESSAGE, **pulled("t"))
    ask("pull: no messages wanted", pull, **pulled("t", maxMsgNums=0))
    ask("pull: offset is no number", pull, **pulled("t", queueOffset="x"))
    ask("pull: empty topic", pull, **pulled("by_use", 3))


def offsets(session: Session) -> None:
    """Offsets of queues and groups."""
    ask = session.ask
    of = {"consumerGroup": "readers", "topic": "t"}
    ask("offset: none", Code.QUERY_CONSUMER_OFFSET, **of, queueId=0)
    ask("offset: none, not zero", Code.QUERY_CONSUMER_OFFSET, **of, queueId=0, setZeroIfNotFound="false")
    ask("commit", Code.UPDATE_CONSUMER_OFFSET, **of, queueId=0, commitOffset=2)
    ask("offset", Code.QUERY_CONSUMER_OFFSET, **of, queueId=0)
    ask(
        "commit: negative",
        Code.UPDATE_CONSUMER_OFFSET,
        consumerGroup="strays",
        topic="odd",
        queueId=0,
        commitOffset=-1,
    )
    ask(
        "commit: unknown topic",
        Code.UPDATE_CONSUMER_OFFSET,
        consumerGroup="readers",
        topic="unknown",
        queueId=0,
        commitOffset=1,
    )
    ask(
        "commit: unknown group",
        Code.UPDATE_CONSUMER_OFFSET,
        consumerGroup="nobody",
        topic="t",
        queueId=0,
        commitOffset=1,
    )
    ask("offset: unknown group", Code.QUERY_CONSUMER_OFFSET, consumerGroup="nobody2", topic="t", queueId=0)
    ask("offset: unknown topic", Code.QUERY_CONSUMER_OFFSET, consumerGroup="readers", topic="unknown", queueId=0)
    for name, code in (("max", Code.GET_MAX_OFFSET), ("min", Code.GET_MIN_OFFSET)):
        ask(name, code, topic="t", queueId=0)
        ask(f"{name}: unknown topic", code, topic="unknown", queueId=0)
        ask(f"{name}: bad queue", code, topic="t", queueId=9)
    for name, time_ms in (("past", 0), ("future", 4_000_000_000_000)):
        ask(f"by time: {name}", Code.SEARCH_OFFSET_BY_TIMESTAMP, topic="t", queueId=0, timestamp=time_ms)
        ask(
            f"by time: {name}, upper",
            Code.SEARCH_OFFSET_BY_TIMESTAMP,
            topic="t",
            queueId=0,
            timestamp=time_ms,
            boundaryType="UPPER",
        )
    ask("by time: unknown topic", Code.SEARCH_OFFSET_BY_TIMESTAMP, topic="unknown", queueId=0, timestamp=0)
    ask("earliest", Code.GET_EARLIEST_MSG_STORETIME, topic="t", queueId=0)
    ask("earliest: empty queue", Code.GET_EARLIEST_MSG_STORETIME, topic="by_use", queueId=3)
    ask("earliest: unknown topic", Code.GET_EARLIEST_MSG_STORETIME, topic="unknown", queueId=0)


def lookups(session: Session) -> None:
    """Messages by key, by id and by their place."""
    ask, wide = session.ask, {"maxNum": 32, "beginTimestamp": 0, "endTimestamp": 4_000_000_000_000}
    ask("by key", Code.QUERY_MESSAGE, topic="t", key="k1", **wide)
    ask("by key: none", Code.QUERY_MESSAGE, topic="t", key="nothing", **wide)
    ask("by key: unknown topic", Code.QUERY_MESSAGE, topic="unknown", key="k1", **wide)
    ask("by unique key", Code.QUERY_MESSAGE, topic="t", key="0" * 31 + "1", **wide, _UNIQUE_KEY_QUERY="true")
    message_id = session.answers["send"].fields["msgId"]
    ask("by id", Code.VIEW_MESSAGE_BY_ID, offset=int(message_id[16:], 16))
    ask("by id: none", Code.VIEW_MESSAGE_BY_ID, offset=2**40)
    ask("by id: negative", Code.VIEW_MESSAGE_BY_ID, offset=-1)
    ask("entries", Code.QUERY_CONSUME_QUEUE, topic="t", queueId=0, index=0, count=3, consumerGroup="readers")
    ask("entries: unknown topic", Code.QUERY_CONSUME_QUEUE, topic="unknown", queueId=0, index=0, count=3)


def clients(session: Session) -> None:
    """Heartbeats, members, connections, locks."""
    ask = session.ask
    subscribed = {
        "topic": "t",
        "subString": "*",
        "tagsSet": [],
        "codeSet": [],
        "subVersion": 1,
        "expressionType": "TAG",
    }
    subscribed["classFilterMode"] = False
    consumer = {"groupName": "readers", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING"}
    consumer |= {
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "subscriptionDataSet": [subscribed],
        "unitMode": False,
    }
    beat = {"clientID": "c1", "producerDataSet": [{"groupName": "writers"}], "consumerDataSet": [consumer]}
    ask("members: none", Code.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="readers")
    ask("connections: none", Code.GET_CONSUMER_CONNECTION_LIST, consumerGroup="readers")
    ask("producers: none", Code.GET_PRODUCER_CONNECTION_LIST, producerGroup="writers2")
    ask("running info: none", Code.GET_CONSUMER_RUNNING_INFO, consumerGroup="readers", clientId="c1")
    ask("heartbeat", Code.HEART_BEAT, beat)
    ask("heartbeat again", Code.HEART_BEAT, beat)
    ask("members", Code.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="readers")
    ask("connections", Code.GET_CONSUMER_CONNECTION_LIST, consumerGroup="readers")
    ask("producers", Code.GET_PRODUCER_CONNECTION_LIST, producerGroup="writers")
    ask("all producers", Code.GET_ALL_PRODUCER_INFO)
    ask("subscription", Code.QUERY_SUBSCRIPTION_BY_CONSUMER, group="readers", topic="t")
    ask("subscription: none", Code.QUERY_SUBSCRIPTION_BY_CONSUMER, group="readers", topic="unknown")
    ask("running info: other client", Code.GET_CONSUMER_RUNNING_INFO, consumerGroup="readers", clientId="c2")
    ask("check", Code.CHECK_CLIENT_CONFIG, {"clientId": "c1", "group": "readers", "subscriptionData": subscribed})
    wrong = {**subscribed, "subString": "a = ", "expressionType": "SQL92"}
    ask("check: bad sql", Code.CHECK_CLIENT_CONFIG, {"clientId": "c1", "group": "readers", "subscriptionData": wrong})


def shares(session: Session) -> None:
    """Locks and assignments of queues; then the client leaves."""
    ask = session.ask
    queue = {"topic": "t", "brokerName": "broker-a", "queueId": 0}
    lock = {"consumerGroup": "readers", "clientId": "c1", "mqSet": [queue], "onlyThisBroker": False}
    ask("lock", Code.LOCK_BATCH_MQ, lock)
    ask("lock: of another", Code.LOCK_BATCH_MQ, {**lock, "clientId": "c2"})
    ask("unlock", Code.UNLOCK_BATCH_MQ, lock)
    ask(
        "assignment",
        Code.QUERY_ASSIGNMENT,
        {
            "topic": "t",
            "consumerGroup": "readers",
            "clientId": "c1",
            "strategyName": "AVG",
            "messageModel": "CLUSTERING",
        },
    )
    ask(
        "assignment: bad strategy",
        Code.QUERY_ASSIGNMENT,
        {
            "topic": "t",
            "consumerGroup": "readers",
            "clientId": "c1",
            "strategyName": "NONE",
            "messageModel": "CLUSTERING",
        },
    )
    ask("unregister", Code.UNREGISTER_CLIENT, clientID="c1", producerGroup="writers", consumerGroup="readers")
    ask("members: gone", Code.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="readers")


def administration(session: Session) -> None:
    """What tools ask a broker."""
    ask = session.ask
    ask("group config", Code.GET_SUBSCRIPTIONGROUP_CONFIG, group="readers")
    ask("group config: unknown", Code.GET_SUBSCRIPTIONGROUP_CONFIG, group="nobody3")
    ask("group: bad name", Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {"groupName": "no good!"})
    ask("group list", Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {"groupConfigList": [{"groupName": "g1"}]})
    ask("group: delete", Code.DELETE_SUBSCRIPTIONGROUP, groupName="g1", cleanOffset="true")
    ask("group: delete unknown", Code.DELETE_SUBSCRIPTIONGROUP, groupName="nobody4", cleanOffset="true")
    ask("lag", Code.GET_CONSUME_STATS, consumerGroup="readers")
    ask("lag: of a topic", Code.GET_CONSUME_STATS, consumerGroup="readers", topic="t")
    ask("lag: unknown group", Code.GET_CONSUME_STATS, consumerGroup="nobody5")
    ask("times", Code.QUERY_CONSUME_TIME_SPAN, group="readers", topic="t")
    ask("times: unknown topic", Code.QUERY_CONSUME_TIME_SPAN, group="readers", topic="unknown")
    ask("correction", Code.QUERY_CORRECTION_OFFSET, topic="t", filterGroups="nobody", compareGroup="nobody6")
    ask("groups of topic", Code.QUERY_TOPIC_CONSUME_BY_WHO, topic="t")
    ask("topics of group", Code.QUERY_TOPICS_BY_CONSUMER, group="readers")
    ask("topics of group: unknown", Code.QUERY_TOPICS_BY_CONSUMER, group="nobody7")
    ask("clone", Code.CLONE_GROUP_OFFSET, srcGroup="readers", destGroup="copy", topic="t", offline="true")
    ask("clone: shown", Code.QUERY_CONSUMER_OFFSET, consumerGroup="copy", topic="t", queueId=0)
    ask(
        "reset",
        Code.INVOKE_BROKER_TO_RESET_OFFSET,
        topic="t",
        group="readers",
        timestamp=-1,
        isForce="true",
        queueId=-1,
        offset=-1,
    )
    ask(
        "reset: unknown topic",
        Code.INVOKE_BROKER_TO_RESET_OFFSET,
        topic="unknown",
        group="readers",
        timestamp=-1,
        isForce="true",
        queueId=-1,
        offset=-1,
    )
    ask("status of members: none", Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, topic="t", group="readers", clientAddr="")
    ask("figure: unknown", Code.VIEW_BROKER_STATS_DATA, statsName="NOTHING", statsKey="x")
    ask("change: no body", Code.UPDATE_BROKER_CONFIG)
    ask("unknown code", 9_999)
    ask("heartbeat: no JSON", Code.HEART_BEAT, b"{")
    ask("clean queues", Code.CLEAN_EXPIRED_CONSUMEQUEUE)
    ask("clean topics", Code.CLEAN_UNUSED_TOPIC)
    ask("clean log", Code.DELETE_EXPIRED_COMMITLOG)


def pops(session: Session) -> None:
    """Messages are popped and acknowledged one by one."""
    ask = session.ask
    for body in (b"p1", b"p2"):
        ask(f"send {body.decode()}", Code.SEND_MESSAGE, body, **sent("popped"))
    session.until("popped", 0, 2)
    ask("group that pops", Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {"groupName": "poppers"})
    mode = {"topic": "popped", "consumerGroup": "poppers", "mode": "POP", "popShareQueueNum": 0}
    ask("mode", Code.SET_MESSAGE_REQUEST_MODE, mode)
    pop = {
        "consumerGroup": "poppers",
        "topic": "popped",
        "queueId": 0,
        "maxMsgNums": 1,
        "invisibleTime": 60_000,
        "pollTime": 0,
        "bornTime": int(time.time() * 1_000),
        "initMode": 0,
        "expType": "TAG",
        "exp": "*",
        "order": "false",
    }
    ask("pop", Code.POP_MESSAGE, **pop)
    ask("pop: second", Code.POP_MESSAGE, **pop)
    ask("pop: no more", Code.POP_MESSAGE, **pop)
    ask("pop: unknown topic", Code.POP_MESSAGE, **{**pop, "topic": "unknown"})
    ask("pop: unknown group", Code.POP_MESSAGE, **{**pop, "consumerGroup": "nobody"})
    ask("pop: bad queue", Code.POP_MESSAGE, **{**pop, "queueId": 99})
    ask("pop: too many", Code.POP_MESSAGE, **{**pop, "maxMsgNums": 99})
    ack = {"consumerGroup": "poppers", "topic": "popped", "queueId": 0, "offset": 0, "extraInfo": "x"}
    ask("ack: forged", Code.ACK_MESSAGE, **ack)
    ask(
        "notification",
        Code.NOTIFICATION,
        consumerGroup="poppers",
        topic="popped",
        queueId=0,
        pollTime=0,
        bornTime=int(time.time() * 1_000),
        order="false",
    )
    ask("polling", Code.POLLING_INFO, consumerGroup="poppers", topic="popped", queueId=0)


def returned(session: Session) -> None:
    """Messages that a consumer hands back."""
    ask = session.ask
    message_id = session.answers["send"].fields["msgId"]
    back = {"group": "readers", "offset": int(message_id[16:], 16), "delayLevel": 0, "originMsgId": "x"}
    back |= {"originTopic": "t", "unitMode": "false", "maxReconsumeTimes": 16}
    ask("hand back", Code.CONSUMER_SEND_MSG_BACK, **back)
    ask("hand back: to the dead letters", Code.CONSUMER_SEND_MSG_BACK, **{**back, "delayLevel": -1})
    ask("hand back: no such message", Code.CONSUMER_SEND_MSG_BACK, **{**back, "offset": 2**40})
    ask("hand back: unknown group", Code.CONSUMER_SEND_MSG_BACK, **{**back, "group": "nobody8"})
    session.until("%DLQ%readers", 0, 1)
    ask("dead letter", Code.PULL_MESSAGE, **pulled("%DLQ%readers"))


def permissions(session: Session) -> None:
    """Topics and groups that may not be used."""
    ask = session.ask
    made = {"readQueueNums": 1, "writeQueueNums": 1, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0}
    made |= {"order": "false", "defaultTopic": "TBW102"}
    ask("read only", Code.UPDATE_AND_CREATE_TOPIC, topic="ro", perm=4, **made)
    ask("read only: send", Code.SEND_MESSAGE, b"x", **sent("ro"))
    ask("write only", Code.UPDATE_AND_CREATE_TOPIC, topic="wo", perm=2, **made)
    ask("write only: send", Code.SEND_MESSAGE, b"x", **sent("wo"))
    ask("write only: pull", Code.PULL_MESSAGE, **pulled("wo"))
    ask("group off", Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {"groupName": "off", "consumeEnable": False})
    ask("group off: pull", Code.PULL_MESSAGE, **pulled("t", consumerGroup="off"))
    ask("attributes", Code.UPDATE_AND_CREATE_TOPIC, topic="fifo", perm=6, attributes="+message.type=FIFO", **made)
    ask("attributes: shown", Code.GET_TOPIC_CONFIG, topic="fifo")
    ask("attributes: unknown", Code.UPDATE_AND_CREATE_TOPIC, topic="fifo", perm=6, attributes="+colour=red", **made)


def delays(session: Session) -> None:
    """Messages for later, and their recall."""
    ask = session.ask
    ask("later", Code.SEND_MESSAGE, b"x", **sent("late", properties=properties(TIMER_DELAY_MS="3600000")))
    ask("later: by level", Code.SEND_MESSAGE, b"x", **sent("late", properties=properties(DELAY="18")))
    ask("later: level too high", Code.SEND_MESSAGE, b"x", **sent("late", properties=properties(DELAY="99")))
    ask("later: too far", Code.SEND_MESSAGE, b"x", **sent("late", properties=properties(TIMER_DELAY_SEC="999999")))
    ask("later: no number", Code.SEND_MESSAGE, b"x", **sent("late", properties=properties(TIMER_DELAY_MS="soon")))
    handle = session.answers["later"].fields.get("recallHandle", "")
    recall = {"producerGroup": "writers", "topic": "late", "recallHandle": handle, "bname": "broker-a"}
    ask("recall: other topic", Code.RECALL_MESSAGE, **{**recall, "topic": "t"})
    ask("recall: unknown topic", Code.RECALL_MESSAGE, **{**recall, "topic": "unknown"})
    ask("recall: no handle", Code.RECALL_MESSAGE, **{**recall, "recallHandle": ""})
    ask("recall", Code.RECALL_MESSAGE, **recall)


def transactions(session: Session) -> None:
    """Half messages and their ends."""
    ask = session.ask
    half = sent("tx", sysFlag=4, properties=properties(TRAN_MSG="true", PGROUP="writers", UNIQ_KEY="0" * 31 + "7"))
    answer = ask("half", Code.SEND_MESSAGE, b"half", **half)
    end = {
        "producerGroup": "writers", "tranStateTableOffset": answer.fields["queueOffset"], "commitOrRollback": 8,
        "commitLogOffset": int(answer.fields["msgId"][16:], 16), "fromTransactionCheck": "false",
        "msgId": "0" * 31 + "7", "transactionId": "0" * 31 + "7", "topic": "tx",
    }  # fmt: skip
    ask("half: not seen", Code.GET_MAX_OFFSET, topic="tx", queueId=0)
    ask("end: other group", Code.END_TRANSACTION, **{**end, "producerGroup": "others"})
    ask("end: commit", Code.END_TRANSACTION, **end)


def acknowledged(session: Session) -> None:
    """Popped messages are acknowledged, given more time, and what cannot be."""
    ask = session.ask
    extra = session.answers["pop"], session.answers["pop: second"]
    of = {"consumerGroup": "poppers", "topic": "popped", "queueId": 0}
    first, second = (_handle(each, offset) for offset, each in enumerate(extra))
    ask("ack", Code.ACK_MESSAGE, **of, offset=0, extraInfo=first)
    ask("ack: again", Code.ACK_MESSAGE, **of, offset=0, extraInfo=first)
    ask("ack: other offset", Code.ACK_MESSAGE, **of, offset=77, extraInfo=second)
    ask("more time", Code.CHANGE_MESSAGE_INVISIBLETIME, **of, offset=1, extraInfo=second, invisibleTime=30_000)
    ask("ack: unknown topic", Code.ACK_MESSAGE, **{**of, "topic": "unknown"}, offset=1, extraInfo=second)
    ask("ack: bad queue", Code.ACK_MESSAGE, **{**of, "queueId": 99}, offset=1, extraInfo=second)


def _handle(popped: Command, offset: int) -> str:
    """The receipt handle of a message, made as clients make it from the fields of the answer."""
    fields = popped.fields
    start = fields["startOffsetInfo"].split(" ")[-1]
    parts = (start, fields["popTime"], fields["invisibleTime"], fields["reviveQid"], "0", "broker-a", "0", str(offset))
    return " ".join(parts)


def oddities(session: Session) -> None:
    """Requests with parts missing or too many."""
    ask = session.ask
    ask("heartbeat: no client", Code.HEART_BEAT, {"producerDataSet": [], "consumerDataSet": []})
    ask("heartbeat: nothing", Code.HEART_BEAT, {"clientID": "c9", "producerDataSet": [], "consumerDataSet": []})
    ask("unregister: unknown", Code.UNREGISTER_CLIENT, clientID="c8", consumerGroup="readers")
    ask("check: nothing", Code.CHECK_CLIENT_CONFIG, {"clientId": "c1", "group": "readers"})
    ask("by key: one", Code.QUERY_MESSAGE, topic="t", key="k1", maxNum=1, beginTimestamp=0, endTimestamp=1)
    ask("members: unknown group", Code.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="nobody9")
    ask(
        "assignment: broadcast",
        Code.QUERY_ASSIGNMENT,
        {
            "topic": "t",
            "consumerGroup": "readers",
            "clientId": "c7",
            "strategyName": "AVG",
            "messageModel": "BROADCASTING",
        },
    )
    ask("groups of unknown topic", Code.QUERY_TOPIC_CONSUME_BY_WHO, topic="unknown")
    ask("lock: nothing", Code.LOCK_BATCH_MQ, {"consumerGroup": "readers", "clientId": "c1", "mqSet": []})
    ask("by time: no number", Code.SEARCH_OFFSET_BY_TIMESTAMP, topic="t", queueId=0, timestamp="x")


def routes(session: Session) -> None:
    """What clients and tools ask a name server."""

    def ask(name: str, code: int, body: object = b"", **fields: object) -> Command:
        return session.ask(name, code, body, at="name server", **fields)

    ask("route", Code.GET_ROUTEINFO_BY_TOPIC, topic="t")
    ask("route: unknown", Code.GET_ROUTEINFO_BY_TOPIC, topic="unknown")
    ask("route: of defaults", Code.GET_ROUTEINFO_BY_TOPIC, topic="TBW102")
    ask("cluster", Code.GET_BROKER_CLUSTER_INFO)
    ask("topics of cluster", Code.GET_TOPICS_BY_CLUSTER, cluster="DefaultCluster")
    ask("topics of cluster: unknown", Code.GET_TOPICS_BY_CLUSTER, cluster="nowhere")
    ask("value: none", Code.GET_KV_CONFIG, namespace="n", key="k")
    ask("value: put", Code.PUT_KV_CONFIG, namespace="n", key="k", value="v")
    ask("value", Code.GET_KV_CONFIG, namespace="n", key="k")
    ask("values", Code.GET_KVLIST_BY_NAMESPACE, namespace="n")
    ask("values: none", Code.GET_KVLIST_BY_NAMESPACE, namespace="m")
    ask("value: delete", Code.DELETE_KV_CONFIG, namespace="n", key="k")
    ask("value: deleted", Code.GET_KV_CONFIG, namespace="n", key="k")
    ask("wipe: unknown broker", Code.WIPE_WRITE_PERM_OF_BROKER, brokerName="nobody")
    ask("name server: unknown code", 9_999)


SCENARIOS: tuple[Callable[[Session], None], ...] = (
    topics, sends, pulls, offsets, lookups, clients, shares, administration, pops, acknowledged, returned, permissions,
    delays, transactions, oddities, routes,
)  # fmt: skip
"""In this order: each uses what the ones before it have stored."""


def run(broker: BlockingConnection, name_server: BlockingConnection) -> dict[str, Command]:
    """The answers of a server, by `SCENARIO/REQUEST`."""
    session, found = Session(broker, name_server), dict[str, Any]()
    for scenario in SCENARIOS:
        before = len(session.answers)
        scenario(session)
        new = list(session.answers.items())[before:]
        found |= {f"{scenario.__name__}/{name}": answer for name, answer in new}
    return found
