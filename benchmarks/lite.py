"""Lite topics: CPU of a broker process per message, subscription and start, and its memory, by the number of topics.

    create              a message that makes its lite topic, sent alone, 32 on the way
    send                one message to one of `--spread` lite topics that one client subscribes to, 32 on the way
    pop 32, pop 1       requests for that many messages of them, 32 requests on the way where there are messages for all
    ack                 one request for each message, 32 on the way
    clients             `--clients` clients, if there are as many topics, subscribe to `--each` lite topics each by one
                        request: for each subscription; then a request that adds one, and one that removes it
    wait, arrive        a thousand of them have a pop that waits; a message for each of them, from the send to the
                        answer of the pop (32 on the way)
    topic, subscr.      memory of the broker for each lite topic, and for each subscription of these clients
    start               seconds and CPU until the broker is ready again, after a stop and after kill -9

Most of the lite topics are made by MQTT publishes, a thousand in a request, which costs the same memory; what made them
is left where it is. The broker's log is flushed asynchronously; bodies of 100 bytes. CPU is the kernel's account of the
broker's process, without its client. Nothing here is gated on time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import psutil

from benchmarks.broker_requests import SENDERS, cpu_s, started
from benchmarks.pop import together
from remoting.client.connection import connect
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.image import encode_mqtt_image
from remoting.protocol.records.stored_message import iter_stored
from remoting.transport.contracts import Connection
from runtime.process import run

BODY = bytes(100)
GROUP, PARENT, CLIENT = "bench", "agents", "c"
CREATED_PER_REQUEST, CREATED_ALONE = 1_000, 5_000
SINGLE_CHANGES, WAITING = 2_000, 1_000
LIMITS = ("broker.limits.lite_subscriptions_max=10000000", "broker.limits.lite_topics_max=10000000",
          "broker.limits.parked_requests_max=100000",
          "broker.lite_client_expiry_s=3600")  # fmt: skip
"""The last one because these clients, unlike real ones, do not repeat their subscriptions every 30 s."""


def lite_topic(number: int) -> str:
    """A name of 15 bytes."""
    return f"session-{number:07d}"


def sending(number: int) -> Command:
    """A send to one lite topic."""
    fields = {"a": "p", "b": PARENT, "c": "TBW102", "d": "4", "e": "-1", "f": "0", "g": "5", "h": "0",
              "i": f"__LITE_TOPIC\x01{lite_topic(number)}\x02"}  # fmt: skip
    return Command(RequestCode.SEND_MESSAGE_V2, fields=fields, body=BODY)


def popping(count: int, client: str = CLIENT, wait_ms: int = 0) -> Command:
    """A pop of a client."""
    fields = {"clientId": client, "consumerGroup": GROUP, "topic": PARENT, "maxMsgNum": str(count),
              "pollTime": str(wait_ms), "invisibleTime": "3600000", "bornTime": "0"}  # fmt: skip
    return Command(RequestCode.POP_LITE_MESSAGE, fields=fields)


def subscribing(client: str, numbers: Iterable[int], action: str = "PARTIAL_ADD") -> Command:
    """A change of a client's subscriptions."""
    entry = {"action": action, "clientId": client, "group": GROUP, "topic": PARENT,
             "liteTopicSet": [lite_topic(number) for number in numbers]}  # fmt: skip
    return Command(RequestCode.LITE_SUBSCRIPTION_CTL, body=json.dumps({"subscriptionSet": [entry]}).encode())


def acknowledgements(answer: Command) -> list[Command]:
    """One for each message of an answer."""
    found = []
    for stored in iter_stored(answer.body):
        name = dict(stored.properties)[b"__LITE_TOPIC"].decode()
        offset = dict(stored.properties)[b"INNER_MULTI_QUEUE_OFFSET"].decode()
        handle = f"0 {answer.fields['popTime']} {answer.fields['invisibleTime']} 999 0 broker-a 0 {offset}"
        fields = {"consumerGroup": GROUP, "topic": PARENT, "queueId": "0", "offset": offset, "extraInfo": handle,
                  "liteTopic": name}  # fmt: skip
        found.append(Command(RequestCode.ACK_MESSAGE, fields=fields))
    return found


async def asked(connection: Connection, commands: Iterable[Command]) -> list[Command]:
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


async def make(connection: Connection, topics: int) -> None:
    """Make that many lite topics."""
    for first in range(0, topics, CREATED_PER_REQUEST):
        numbers = range(first, min(first + CREATED_PER_REQUEST, topics))
        images = [encode_mqtt_image(f"{PARENT}/{lite_topic(each)}".encode(), BODY, 1, 1, b"d") for each in numbers]
        answer = await connection.request(Command(RequestCode.APPEND_MANY, body=b"".join(images)), timeout_ms=60_000)
        assert answer.code == 0, answer.remark


def anonymous(server: psutil.Process) -> int:
    """Bytes of the broker that are not mapped files."""
    info = server.memory_info()
    return int(info.rss - info.shared)


async def timed(server: psutil.Process, connection: Connection, commands: list[Command]) -> float:
    """Microseconds of CPU for each of these requests."""
    begun = cpu_s(server)
    await asked(connection, commands)
    return (cpu_s(server) - begun) / len(commands) * 1e6


async def drain(connection: Connection, client: str) -> None:
    """Let a client pop and acknowledge what there is."""
    while (answer := await connection.request(popping(32, client))).code == ResponseCode.SUCCESS:
        await asked(connection, acknowledgements(answer))


async def traffic(server: psutil.Process, connection: Connection, topics: int, messages: int, spread: int) -> None:
    """Send, pop and acknowledge messages of some lite topics."""
    spread = min(spread, topics)
    step = topics // spread
    numbers = [number * step for number in range(spread)]
    await asked(connection, [subscribing(CLIENT, numbers)])
    await drain(connection, CLIENT)  # what made them
    for each in (32, 1):
        send_us = await timed(server, connection, [sending(numbers[at % spread]) for at in range(messages)])
        popped_s = acked_s = 0.0
        done = 0
        while done < messages:
            begun = cpu_s(server)
            requests = SENDERS if spread >= SENDERS * each else 1
            answers = await asyncio.gather(*(connection.request(popping(each)) for _ in range(requests)))
            middle = cpu_s(server)
            acks = [one for answer in answers if answer.code == 0 for one in acknowledgements(answer)]
            await asked(connection, acks)
            done += len(acks)
            popped_s, acked_s = popped_s + middle - begun, acked_s + cpu_s(server) - middle
        shown = send_us, popped_s / done * 1e6, acked_s / done * 1e6
        print(f"    send {shown[0]:.1f}, pop {each} {shown[1]:.1f}, ack of it {shown[2]:.1f} us a message", flush=True)
    await asked(connection, [subscribing(CLIENT, numbers, "PARTIAL_REMOVE")])


async def event_sets(server: psutil.Process, connection: Connection, topics: int, clients: int, each: int) -> None:
    """Let many clients subscribe, wait and get messages."""
    wanted = {f"client-{at}": range(at * each, (at + 1) * each) for at in range(min(clients, topics // each))}
    before = anonymous(server)
    subscribe_us = await timed(server, connection, [subscribing(client, wanted[client]) for client in wanted])
    memory = (anonymous(server) - before) / (len(wanted) * each)
    print(f"    clients: {subscribe_us / each:.2f} us and {memory:.0f} bytes a subscription", flush=True)
    some = list(wanted)[:SINGLE_CHANGES]
    changes = [
        await timed(server, connection, [subscribing(client, [topics - 1], action) for client in some])
        for action in ("PARTIAL_ADD", "PARTIAL_REMOVE")
    ]
    print(f"    add one {changes[0]:.1f}, remove one {changes[1]:.1f} us a request", flush=True)
    some = some[:WAITING]
    for client in some:
        await drain(connection, client)
    begun = cpu_s(server)
    waiting = [asyncio.ensure_future(connection.request(popping(1, each, 60_000), timeout_ms=90_000)) for each in some]
    await asked(connection, [sending(topics + CREATED_ALONE)])  # behind all of them
    parked = cpu_s(server)
    await asked(connection, [sending(wanted[client][0]) for client in some])
    answers = await asyncio.gather(*waiting)
    others = Counter((answer.code, answer.remark) for answer in answers if answer.code != ResponseCode.SUCCESS)
    assert not others, others
    shown = (parked - begun) / len(some) * 1e6, (cpu_s(server) - parked) / len(some) * 1e6
    print(f"    wait {shown[0]:.1f}, arrive {shown[1]:.1f} us a message", flush=True)


async def measure(port: int, server: psutil.Process, topics: int, options: argparse.Namespace) -> None:
    """Print the costs with so many lite topics."""
    connection = await connect("127.0.0.1", port)
    await prepare(connection)
    await asked(connection, [sending(topics)])
    before, begun = anonymous(server), cpu_s(server)
    await make(connection, topics)
    made_us = (cpu_s(server) - begun) / topics * 1e6
    await asyncio.sleep(2)
    memory = (anonymous(server) - before) / topics
    create_us = await timed(server, connection, [sending(topics + 1 + each) for each in range(CREATED_ALONE)])
    print(
        f"    topic {memory:.0f} bytes; create {create_us:.1f} us alone, {made_us:.1f} by MQTT in batches", flush=True
    )
    await traffic(server, connection, topics, options.messages, options.spread)
    await event_sets(server, connection, topics, options.clients, options.each)
    await connection.close()


def starts(folder: Path) -> None:
    """Start the broker on what is there, after a stop and then after kill -9."""
    for what in ("a stop", "kill -9"):
        begun = time.monotonic()
        with started(folder, *LIMITS) as (_port, server):
            ready = time.monotonic() - begun
            print(f"    start after {what}: {ready:.2f} s, {cpu_s(server):.2f} of CPU", flush=True)
            server.kill()


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--topics", type=int, nargs="+", default=[1_000, 1_000_000])
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--spread", type=int, default=2_000)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--each", type=int, default=100, help="subscriptions of a client")
    options = parser.parse_args()
    for topics in options.topics:
        print(f"{topics} lite topics, broker CPU", flush=True)
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="lite-", dir=".") as folder:
            with started(Path(folder), *LIMITS) as (port, server):
                run(measure(port, server, topics, options))
            starts(Path(folder))
        print(f"    in {time.monotonic() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    main()
