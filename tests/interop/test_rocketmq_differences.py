"""RocketMQ's own name server and broker and `lightmq up` answer the same requests, compared field by field.

Every difference is either declared in `JUSTIFIED` with its reason or a defect. A declaration that no difference needs
any more fails too.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import maven
from remoting.client.blocking import BlockingConnection
from remoting.protocol.frames.commands import Command
from tests.interop import difference_scenarios
from tests.interop.answers import Justified, compared, unjustified
from tests.interop.rocketmq_servers import rocketmq_servers
from tests.processes.rig import Server

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(600)]

ANY = ".*"
JUSTIFIED = [
    Justified(
        "(sends|permissions|delays)/.*", r"fields\.(MSG_REGION|TRACE_ON)",
        "RocketMQ puts the region into refusals as well; clients read it in successful answers only",
    ),
    Justified(
        "sends/send: empty body", ANY,
        "a body may be empty; RocketMQ fails with a NullPointerException on a frame without one",
    ),
    Justified(
        "sends/send: negative delay level", ANY,
        "a delay that is negative is refused; RocketMQ delivers at once what was to be delayed",
    ),
    Justified(
        "sends/send: field missing", ANY,
        "without a queue number any queue is taken; RocketMQ fails with a NullPointerException",
    ),
    Justified(
        "(sends/send|pulls/pull|oddities/by time): .*no number", "code",
        "a value that is no number is named and refused with 29; RocketMQ answers 1 with a Java exception",
    ),
    Justified(
        "sends/batch", r"fields\.transactionId",
        "the unique key of the first message, as for a single message; RocketMQ gives batches none",
    ),
    Justified(
        "sends/batch: cut", "code", "a batch that is cut is refused as illegal; RocketMQ answers 1 with an exception"
    ),
    Justified(
        "pulls/.*", r"body\[\d\]\.properties(\.(CLUSTER|MSG_REGION|TRACE_ON|UNIQ_KEY))?",
        "messages of a batch have the region and a unique key as single ones have; RocketMQ leaves them out",
    ),
    Justified(
        "(pulls/pull|clients/check): bad sql", ANY,
        "an expression that cannot be parsed is refused; RocketMQ accepts some, and then delivers everything",
    ),
    Justified(
        "pulls/pull: unknown language", ANY,
        "a filter language that is not known is refused; RocketMQ passes over the filter and delivers everything",
    ),
    Justified(
        "offsets/commit: negative", "code", "RocketMQ stores a negative offset, from which no consumer can read"
    ),
    Justified(
        "lookups/(by key|entries): unknown topic", ANY,
        "a topic that does not exist is named; RocketMQ answers that it found nothing",
    ),
    Justified(
        "lookups/entries", r"body\.(filterData|queueData\[\d\]\.eval|subscriptionData.*)",
        "how a group's filter judges the entries is not offered; entries are listed as they are",
    ),
    Justified(
        "(clients/heartbeat again|oddities/heartbeat: nothing)",
        r"fields\.IS_SUB_CHANGE",
        "true when the subscription has changed; RocketMQ says true to every full heartbeat",
    ),
    Justified("(shares|oddities)/lock.*", r"body\.fencingTokens.*", "locks have tokens, which its clients pass over"),
    Justified(
        "shares/assignment: bad strategy", ANY,
        "a strategy that is not known is refused by its name; RocketMQ answers with no queues and no reason",
    ),
    Justified(
        "returned/dead letter", r"body\[\d\]\.properties\.DLQ_ORIGIN_(TOPIC|MESSAGE_ID)",
        "every dead letter names the message it was; RocketMQ's do where it goes to them by another road",
    ),
    Justified(
        "routes/cluster", r"body\.(mqttGroup|topicsUnknown)",
        "two members more, for LightMQ's own clients; RocketMQ's pass over them",
    ),
    Justified(
        "administration/lag.*", r'body\.offsetTable\.\{"brokerName":"broker-a","queueId":1,"topic":"t"\}\..*',
        "queues in which the group never committed are not listed; RocketMQ lists them with offset 0",
    ),
    Justified(
        "administration/lag.*", r"body\.offsetTable\..*\.(minOffset|waitingMs)",
        "two members more, which RocketMQ's tools pass over",
    ),
    Justified(
        "administration/times", r"body\.consumeTimeSpanSet\[\d\]\.\w+Str",
        "RocketMQ repeats each time as text in its own time zone; its tools read the numbers",
    ),
    Justified(
        "administration/groups of topic", r"body\.groupList.*",
        "a group that committed in the topic is listed even if none of its members was ever there",
    ),
    Justified("administration/change: no body", "code", "a change of nothing is refused; RocketMQ answers success"),
    Justified(
        "administration/heartbeat: no JSON", "code",
        "a body that is no JSON is refused with 29; RocketMQ answers 1 with a Java exception",
    ),
    Justified(
        "pops/pop: (no more|unknown topic|bad queue|too many)",
        r"fields\.(invisibleTime|msgOffsetInfo|popTime|restNum|reviveQid|startOffsetInfo)",
        "an answer without messages has no fields about messages; clients read them only where there are fields",
    ),
    Justified(
        "pops/ack: forged", "code", "a malformed handle is refused with 29; RocketMQ answers 1 with an exception"
    ),
    Justified(
        "acknowledged/ack: again", "code",
        "a second acknowledgement is named (208, no message); RocketMQ answers success and drops it later",
    ),
    Justified(
        "returned/dead letter", r"body\[0\]\.properties\.(DELAY|WAIT|ORIGIN_MESSAGE_ID)",
        "the id that the consumer names stays with the message, and properties of RocketMQ's store are not added",
    ),
    Justified(
        "permissions/read only: send", ANY,
        "a topic without the permission to write takes nothing; RocketMQ's broker leaves that to its clients",
    ),
    Justified(
        "permissions/.*: pull", r"fields\.forbiddenType", "the remark says what forbids it; clients pass over the field"
    ),
    Justified(
        "permissions/attributes: unknown", "code",
        "an unknown attribute is an invalid parameter (29); RocketMQ answers 1 with a Java exception",
    ),
    Justified(
        "delays/later.*", r"fields\.(queueOffset|recallHandle)",
        "the offset is one of a hidden queue; messages delayed by a level can be recalled too",
    ),
    Justified(
        "transactions/end: other group", "code",
        "a group that is not the message's is refused with RocketMQ's code for it; its broker answers 1",
    ),
    Justified(
        "oddities/heartbeat: no client", ANY,
        "a heartbeat without a client id is refused; RocketMQ registers a client without a name",
    ),
    Justified(
        "routes/route.*", r"body\.topicQueueMappingByBroker", "RocketMQ leaves out the empty table of static topics"
    ),
    Justified(
        "routes/topics of cluster", r"body\.topicList.*",
        "RocketMQ's system topics are no topics here, and retry topics are made when they are needed",
    ),
]  # fmt: skip


def answers(broker: int, name_server: int) -> dict[str, Command]:
    """What the servers at these ports answer."""
    connections = [BlockingConnection("127.0.0.1", port) for port in (broker, name_server)]
    try:
        return difference_scenarios.run(*connections)
    finally:
        for connection in connections:
            connection.close()


def test_rocketmqs_servers_and_ours_answer_alike(tmp_path: Path) -> None:
    jars = maven.jars("rocketmq")
    if jars is None:
        pytest.skip("RocketMQ's servers cannot be fetched")
    with rocketmq_servers(jars, tmp_path / "rocketmq") as ports:
        theirs = answers(*ports)
    server = Server(tmp_path / "data")
    server.start()
    try:
        ours = answers(server.ports["remoting"], server.ports["remoting"])
    finally:
        server.kill_if_running()
    found = compared(theirs, ours)
    defects = unjustified(found, JUSTIFIED)
    assert not defects, "\n".join(map(str, defects))
    stale = [rule for rule in JUSTIFIED if not any(map(rule.covers, found))]
    assert not stale, stale
