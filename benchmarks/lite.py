"""Lite topics: CPU of a broker process per message sent, popped and acknowledged, by the number of lite topics.

    send                one message to one of the lite topics, 32 on the way
    pop 32, pop 1       requests for that many messages; messages are spread over `--spread` lite topics
    ack                 one request for each message, 32 on the way
    topic, subscr.      memory of the broker for each lite topic, and for each subscription of one client to it

The broker's log is flushed asynchronously; bodies of 100 bytes. CPU is the kernel's account of the broker's process,
without its client. Nothing here is gated on time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time

import psutil

from benchmarks.broker_requests import SENDERS, broker, cpu_s
from benchmarks.pop import together
from remoting.client.connection import connect
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.stored_message import iter_stored
from remoting.transport.contracts import Connection
from runtime.process import run

BODY = bytes(100)
GROUP, PARENT, CLIENT = "bench", "agents", "c"
SUBSCRIBED_PER_REQUEST = 5_000


def sending(number: int) -> Command:
    """A send to one lite topic."""
    fields = {"a": "p", "b": PARENT, "c": "TBW102", "d": "4", "e": "-1", "f": "0", "g": "5", "h": "0",
              "i": f"__LITE_TOPIC\x01session-{number:07d}\x02"}  # fmt: skip
    return Command(RequestCode.SEND_MESSAGE_V2, fields=fields, body=BODY)


def popping(count: int) -> Command:
    """A pop of this client."""
    fields = {"clientId": CLIENT, "consumerGroup": GROUP, "topic": PARENT, "maxMsgNum": str(count), "pollTime": "0",
              "invisibleTime": "3600000", "bornTime": "0"}  # fmt: skip
    return Command(RequestCode.POP_LITE_MESSAGE, fields=fields)


def acknowledgements(answer: Command) -> list[Command]:
    """One for each message of an answer."""
    found = []
    for stored in iter_stored(answer.body):
        lite_topic = dict(stored.properties)[b"__LITE_TOPIC"].decode()
        offset = stored.queue_offset
        handle = f"0 {answer.fields['popTime']} {answer.fields['invisibleTime']} 999 0 broker-a 0 {offset}"
        fields = {"consumerGroup": GROUP, "topic": PARENT, "queueId": "0", "offset": str(offset), "extraInfo": handle,
                  "liteTopic": lite_topic}  # fmt: skip
        found.append(Command(RequestCode.ACK_MESSAGE, fields=fields))
    return found


async def asked(connection: Connection, commands: list[Command]) -> list[Command]:
    """The answers, with `SENDERS` requests on the way."""
    answers: list[Command] = []

    async def one(command: Command) -> None:
        answer = await connection.request(command, timeout_ms=60_000)
        assert answer.code == 0, answer.remark
        answers.append(answer)

    await together([lambda command=command: one(command) for command in commands])  # type: ignore[misc]
    return answers


async def prepare(connection: Connection) -> None:
    """Create the parent topic and the group."""
    topic = {"topic": PARENT, "readQueueNums": "2", "writeQueueNums": "2", "perm": "6",
             "attributes": "+message.type=LITE,+lite.topic.expiration=1440"}  # fmt: skip
    group = {"groupName": GROUP, "attributes": {"+lite.bind.topic": PARENT, "+lite.sub.client.quota": "-1"}}
    for command in (
        Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields=topic),
        Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=json.dumps(group).encode()),
    ):
        answer = await connection.request(command)
        assert answer.code == 0, answer.remark


async def subscribe(connection: Connection, topics: int) -> None:
    """Let the client subscribe to all lite topics."""
    for first in range(0, topics, SUBSCRIBED_PER_REQUEST):
        names = [f"session-{number:07d}" for number in range(first, min(first + SUBSCRIBED_PER_REQUEST, topics))]
        entry = {"action": "PARTIAL_ADD", "clientId": CLIENT, "group": GROUP, "topic": PARENT, "liteTopicSet": names}
        command = Command(RequestCode.LITE_SUBSCRIPTION_CTL, body=json.dumps({"subscriptionSet": [entry]}).encode())
        await asked(connection, [command])


def anonymous(server: psutil.Process) -> int:
    """Bytes of the broker that are not mapped files."""
    info = server.memory_info()
    return int(info.rss - info.shared)


async def measure(topics: int, messages: int, spread: int) -> None:
    """Print the costs with so many lite topics."""
    with broker() as (port, server):
        connection = await connect("127.0.0.1", port)
        await prepare(connection)
        before = anonymous(server)
        for first in range(0, topics, 50_000):
            await asked(connection, [sending(number) for number in range(first, min(first + 50_000, topics))])
        made = anonymous(server)
        await subscribe(connection, topics)
        await asyncio.sleep(2)
        memory = (made - before) / topics, (anonymous(server) - made) / topics
        drained = 0
        while drained < topics:  # what made the lite topics
            answer = await connection.request(popping(32))
            commands = acknowledgements(answer)
            drained += len(await asked(connection, commands))
        step = max(1, topics // spread)
        numbers = [(number % spread) * step % topics for number in range(messages)]
        figures = []
        for each in (32, 1):
            begun = cpu_s(server)
            await asked(connection, [sending(number) for number in numbers])
            sent, popped, commands = cpu_s(server), 0, []
            acked_s = popped_s = 0.0
            while popped < messages:
                begin = cpu_s(server)
                asks = SENDERS if min(topics, spread) >= SENDERS * each else 1
                answers = await asyncio.gather(*(connection.request(popping(each)) for _ in range(asks)))
                middle = cpu_s(server)
                commands = [one for answer in answers if answer.code == 0 for one in acknowledgements(answer)]
                await asked(connection, commands)
                popped += len(commands)
                popped_s, acked_s = popped_s + middle - begin, acked_s + cpu_s(server) - middle
            figures.append((sent - begun, popped_s, acked_s))
        (send_s, pop_32_s, ack_32_s), (_, pop_1_s, ack_1_s) = figures
        shown = [value / messages * 1e6 for value in (send_s, pop_32_s, ack_32_s, pop_1_s, ack_1_s)]
        print(f"{topics:>9} " + " ".join(f"{value:>8.1f}" for value in (*shown, *memory)), flush=True)
        await connection.close()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--topics", type=int, nargs="+", default=[1, 1_000, 100_000, 1_000_000])
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--spread", type=int, default=2_000)
    options = parser.parse_args()
    print("us of broker CPU per message; bytes of memory for each lite topic and for each subscription")
    print("   topics     send   pop 32 ack of it    pop 1 ack of it    topic  subscr.", flush=True)
    for topics in options.topics:
        begun = time.monotonic()
        run(measure(topics, options.messages, options.spread))
        print(f"          in {time.monotonic() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    main()
