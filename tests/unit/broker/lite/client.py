"""A client of lite topics over the in-process transport, as RocketMQ's clients build their requests."""

from __future__ import annotations

import json

from remoting.client.connection import Connection
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.stored_message import StoredMessage, iter_stored

PARENT, GROUP = "agents", "workers"
INVISIBLE_MS = 10_000


class Message:
    """One message as a client has it."""

    def __init__(self, stored: StoredMessage, answer: Command, times: str) -> None:
        self.stored = stored
        self.body = bytes(stored.body)
        self.properties = {bytes(key).decode(): bytes(value).decode() for key, value in stored.properties}
        self.lite_topic = self.properties["__LITE_TOPIC"]
        self.times = int(times)
        self.offset = int(self.properties["INNER_MULTI_QUEUE_OFFSET"])
        fields = answer.fields
        self.handle = (
            f"0 {fields['popTime']} {fields['invisibleTime']} {fields['reviveQid']} 0 broker-a 0 {self.offset}"
        )

    def command(self, code: int = Code.ACK_MESSAGE, **fields: object) -> Command:
        """The acknowledgement, or another request about it."""
        named = {
            "consumerGroup": GROUP, "topic": PARENT, "queueId": 0, "offset": self.offset, "extraInfo": self.handle,
            "liteTopic": self.lite_topic,
        }  # fmt: skip
        return Command(code, fields={name: str(value) for name, value in (named | fields).items()})


async def make_parent(connection: Connection, name: str = PARENT, attributes: str = "+message.type=LITE") -> Command:
    fields = {"topic": name, "readQueueNums": "2", "writeQueueNums": "2", "perm": "6", "attributes": attributes}
    return await connection.request(Command(Code.UPDATE_AND_CREATE_TOPIC, fields=fields))


async def make_group(connection: Connection, name: str = GROUP, **attributes: str) -> Command:
    named = {"+lite.bind.topic": PARENT} | {"+" + key.replace("_", "."): value for key, value in attributes.items()}
    body = json.dumps({"groupName": name, "attributes": named}).encode()
    return await connection.request(Command(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body))


async def send(connection: Connection, lite_topic: str, *bodies: bytes, topic: str = PARENT, more: str = "") -> int:
    """Send messages to a lite topic; returns the code of the last answer."""
    fields = {"a": "p", "b": topic, "c": "TBW102", "d": "4", "e": "-1", "f": "0", "g": "5", "h": "0",
              "i": f"__LITE_TOPIC\x01{lite_topic}\x02{more}"}  # fmt: skip
    reply = Command(0)
    for body in bodies:
        reply = await connection.request(Command(Code.SEND_MESSAGE_V2, fields=fields, body=body))
    return reply.code


def change(action: str, *lite_topics: str, client: str = "c1", group: str = GROUP, **more: object) -> Command:
    entry = {"action": action, "clientId": client, "group": group, "topic": PARENT, "liteTopicSet": [*lite_topics]}
    return Command(Code.LITE_SUBSCRIPTION_CTL, body=json.dumps({"subscriptionSet": [entry | more]}).encode())


async def subscribe(connection: Connection, *lite_topics: str, **more: object) -> int:
    return (await connection.request(change("PARTIAL_ADD", *lite_topics, **more))).code  # type: ignore[arg-type]


def popping(client: str = "c1", **fields: object) -> Command:
    named = {
        "clientId": client, "consumerGroup": GROUP, "topic": PARENT, "maxMsgNum": 32, "invisibleTime": INVISIBLE_MS,
        "pollTime": 0, "bornTime": 0,
    }  # fmt: skip
    return Command(Code.POP_LITE_MESSAGE, fields={name: str(value) for name, value in (named | fields).items()})


def messages_of(answer: Command) -> list[Message]:
    if answer.code == ResponseCode.POLLING_TIMEOUT:
        return []
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    found = list(iter_stored(answer.body))
    counts = answer.fields["orderCountInfo"].split(";")
    return [Message(stored, answer, times) for stored, times in zip(found, counts, strict=True)]


async def pop(connection: Connection, client: str = "c1", **fields: object) -> list[Message]:
    return messages_of(await connection.request(popping(client, **fields)))


async def ack(connection: Connection, *messages: Message, **fields: object) -> int:
    """Acknowledge messages; returns the code of the last answer."""
    code = -1
    for message in messages:
        code = (await connection.request(message.command(**fields))).code  # type: ignore[arg-type]
    return code
