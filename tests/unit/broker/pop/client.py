"""A POP consumer and a producer over one connection, as the tests of this folder use them."""

from __future__ import annotations

import json

from broker.pop.feature import PopFeature
from remoting.client.connection import Connection
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.stored_message import StoredMessage, iter_stored

TOPIC, GROUP = "orders", "billing"
INVISIBLE_MS = 10_000


class Message:
    """One message as a client has it: its content, and the handle made from the answer."""

    def __init__(self, stored: StoredMessage, answer: Command) -> None:
        self.stored = stored
        self.body = stored.body
        self.topic = stored.topic.decode()
        fields = answer.fields
        starts = dict(tuple(part.rsplit(" ", 1)) for part in fields["startOffsetInfo"].split(";"))
        mark = "2" if self.topic.startswith("%RETRY%") else "0"
        start = starts[f"{mark} {stored.queue_id}"]
        self.handle = (
            f"{start} {fields['popTime']} {fields['invisibleTime']} {fields['reviveQid']} {mark} broker-a "
            f"{stored.queue_id} {stored.queue_offset}"
        )

    def command(self, code: int = RequestCode.ACK_MESSAGE, **fields: object) -> Command:
        """The acknowledgement, or another request about it."""
        named = {
            "consumerGroup": GROUP, "topic": self.topic, "queueId": self.stored.queue_id,
            "offset": self.stored.queue_offset, "extraInfo": self.handle,
        }  # fmt: skip
        return Command(code, fields={name: str(value) for name, value in (named | fields).items()})


def popping(code: int = RequestCode.POP_MESSAGE, **fields: object) -> Command:
    named = {
        "consumerGroup": GROUP, "topic": TOPIC, "queueId": -1, "maxMsgNums": 32, "invisibleTime": INVISIBLE_MS,
        "pollTime": 0, "bornTime": 0, "initMode": 0,
    }  # fmt: skip
    return Command(code, fields={name: str(value) for name, value in (named | fields).items()})


async def send(
    connection: Connection, *bodies: bytes, topic: str = TOPIC, queue: int = -1, tag: str = "", priority: int = -1
) -> None:
    properties = f"TAGS\x01{tag}\x02" if tag else ""
    properties += f"_SYS_MSG_PRIORITY_\x01{priority}\x02" if priority >= 0 else ""
    fields = {"a": "p", "b": topic, "c": "TBW102", "d": "4", "e": str(queue), "f": "0", "g": "5", "h": "0",
              "i": properties}  # fmt: skip
    for body in bodies:
        reply = await connection.request(Command(RequestCode.SEND_MESSAGE_V2, fields=fields, body=body))
        assert reply.code == ResponseCode.SUCCESS, reply.remark


async def pop(connection: Connection, **fields: object) -> list[Message]:
    reply = await connection.request(popping(**fields))
    if reply.code == ResponseCode.POLLING_TIMEOUT:
        return []
    assert reply.code == ResponseCode.SUCCESS, reply.remark
    return [Message(stored, reply) for stored in iter_stored(reply.body)]


async def ack(connection: Connection, message: Message, **fields: object) -> int:
    return (await connection.request(message.command(**fields))).code


def feature(running) -> PopFeature:
    return next(each for each in running.broker.features if isinstance(each, PopFeature))


async def expire(running, ms: int = INVISIBLE_MS) -> None:
    """Let time pass and append again what is due."""
    running.clock.advance_ms(ms)
    feature(running).maintain(running.clock.now_ms())
    await running.settle()


def refused(running, reason: str) -> float:
    return running.registry.values().get(f"rocketmq_pop_refused_total{{{reason}}}", 0)


def refusals(running) -> float:
    """Refused requests, for whatever reason."""
    values = running.registry.values()
    return sum(value for name, value in values.items() if name.startswith("rocketmq_pop_refused_total{"))


async def set_mode(connection: Connection, mode: object, **more: object) -> Command:
    body = {"topic": TOPIC, "consumerGroup": GROUP, "mode": mode, "popShareQueueNum": 0} | more
    return await connection.request(Command(RequestCode.SET_MESSAGE_REQUEST_MODE, body=json.dumps(body).encode()))


async def pull(connection: Connection, topic: str = TOPIC, **fields: object) -> Command:
    named = {"consumerGroup": GROUP, "topic": topic, "queueId": 0, "queueOffset": 0, "maxMsgNums": 32, "sysFlag": 4,
             "commitOffset": 0, "subscription": "*"}  # fmt: skip
    text = {name: str(value) for name, value in (named | fields).items()}
    return await connection.request(Command(RequestCode.PULL_MESSAGE, fields=text))
