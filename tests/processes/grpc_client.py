"""Scenarios with RocketMQ's Python gRPC client; run by an interpreter of its own, because it writes logs below HOME.

Arguments: scenario, port, and for some a key and a secret. What happened is printed as one JSON line.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    LitePushConsumer,
    LiteSimpleConsumer,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.v5.exception import LiteSubscriptionQuotaExceededException

DEADLINE_S = 40.0
PAUSE_S = 0.05
TOPIC, PARENT, URGENT = "orders", "agents", "urgent"


def configuration(port: str, key: str = "", secret: str = "") -> ClientConfiguration:
    return ClientConfiguration(f"127.0.0.1:{port}", Credentials(key, secret), request_timeout=5)


def message(body: str, *, topic: str = TOPIC, **parts: Any) -> Message:
    made = Message()
    made.topic, made.body = topic, body.encode()
    for name, value in parts.items():
        setattr(made, name, value)
    return made


def received(config: ClientConfiguration, count: int, *, group: str = "simple", topic: str = TOPIC) -> list[Message]:
    """So many messages, each acknowledged."""
    consumer = SimpleConsumer(config, group, {topic: FilterExpression()})
    consumer.startup()
    found: list[Message] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(found) < count and time.monotonic() < deadline:
        for one in consumer.receive(16, 15) or ():
            consumer.ack(one)
            found.append(one)
    consumer.shutdown()
    return found


class Listener(MessageListener):
    """Keeps what came; the first delivery of `retry` fails."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.bodies: list[str] = []
        self.complete = threading.Event()

    def consume(self, message: Message) -> ConsumeResult:
        body = message.body.decode()
        if body == "retry" and message.delivery_attempt == 1:
            return ConsumeResult.FAILURE
        self.bodies.append(body)
        if len(self.bodies) >= self.count:
            self.complete.set()
        return ConsumeResult.SUCCESS


class Committing(TransactionChecker):
    def __init__(self) -> None:
        self.asked = threading.Event()

    def check(self, message: Message) -> TransactionResolution:
        self.asked.set()
        return TransactionResolution.COMMIT


def producer(config: ClientConfiguration, checker: TransactionChecker | None = None, *, topic: str = TOPIC) -> Producer:
    made = Producer(config, (topic,), checker=checker)
    made.startup()
    return made


def simple(config: ClientConfiguration) -> Any:
    """Normal messages with tag, keys and properties; and in order, by a message group."""
    sender = producer(config)
    first = message("normal", tag="a", keys="k1")
    first.add_property("color", "red")
    receipts = [sender.send(first)]
    receipts += [sender.send(message(f"fifo {number}", message_group="g")) for number in range(5)]
    found = received(config, 6)
    sender.shutdown()
    normal = next(one for one in found if one.body == b"normal")
    return {
        "offsets": [receipt.offset for receipt in receipts[1:]],
        "fifo": [one.body.decode() for one in found if one.message_group == "g"],
        "normal": [normal.tag, sorted(normal.keys), normal.properties, normal.message_id == receipts[0].message_id],
    }


def push(config: ClientConfiguration) -> Any:
    """A push consumer, with one message that it fails to handle at first."""
    sender, listener = producer(config), Listener(3)
    consumer = PushConsumer(config, "pushing", listener, {TOPIC: FilterExpression()})
    consumer.startup()
    for body in ("one", "retry", "two"):
        sender.send(message(body))
    listener.complete.wait(DEADLINE_S)
    consumer.shutdown()
    sender.shutdown()
    return sorted(listener.bodies)


class InOrder(Listener):
    """The second message fails so often."""

    failures = 2

    def consume(self, message: Message) -> ConsumeResult:
        self.bodies.append(message.body.decode())
        if message.body == b"2" and self.failures:
            self.failures -= 1
            return ConsumeResult.FAILURE
        if len(self.bodies) >= self.count:
            self.complete.set()
        return ConsumeResult.SUCCESS


def ordered(config: ClientConfiguration) -> Any:
    """A push consumer of a group that consumes in order."""
    sender, listener = producer(config), InOrder(6)
    consumer = PushConsumer(config, "orderly", listener, {TOPIC: FilterExpression()})
    consumer.startup()
    for number in range(1, 5):
        sender.send(message(str(number), message_group="g"))
    listener.complete.wait(DEADLINE_S)
    consumer.shutdown()
    sender.shutdown()
    return listener.bodies


def delayed(config: ClientConfiguration) -> Any:
    """A delayed message that is recalled, and one that is delivered."""
    sender, begun = producer(config), time.time()
    soon = int(begun) + 3
    handle = sender.send(message("recalled", delivery_timestamp=soon)).recall_handle
    sender.send(message("delivered", delivery_timestamp=soon))
    recalled = sender.recall_message(TOPIC, handle)
    found = received(config, 1, group="late")
    sender.shutdown()
    in_time = [soon <= one.transport_delivery_timestamp / 1_000 for one in found]
    return {"bodies": [one.body.decode() for one in found], "in time": in_time, "recalled": bool(recalled)}


def priority(config: ClientConfiguration) -> Any:
    """Messages that are there before the consumer, sent asynchronously: the most urgent comes first."""
    sender = producer(config, topic=URGENT)
    for number in (1, 3, 2):
        sender.send_async(message(str(number), topic=URGENT, priority=number)).result(DEADLINE_S)
    sender.shutdown()
    return [one.body.decode() for one in received(config, 3, group="urgently", topic=URGENT)]


def transactions(config: ClientConfiguration) -> Any:
    """One is committed, one rolled back, one left to the check."""
    checker = Committing()
    sender = producer(config, checker)
    for outcome in ("commit", "roll back", "leave"):
        transaction = sender.begin_transaction()
        sender.send(message(outcome), transaction)
        if outcome == "commit":
            transaction.commit()
        elif outcome == "roll back":
            transaction.rollback()
    asked = checker.asked.wait(DEADLINE_S)
    found = received(config, 2, group="decided")
    sender.shutdown()
    return {"asked": asked, "bodies": sorted(one.body.decode() for one in found)}


def subscribe(consumer: Any, *lite_topics: str) -> None:
    """Subscribe once the client knows its quota: it starts with 0, and its start does not wait for the settings.

    Its subscription to one lite topic names each character of the name; that of all, which it repeats every 30 s, is
    right.
    """
    deadline = time.monotonic() + DEADLINE_S
    for lite_topic in lite_topics:
        while True:
            try:
                consumer.subscribe_lite(lite_topic)
                break
            except LiteSubscriptionQuotaExceededException:
                if time.monotonic() > deadline:
                    raise
                time.sleep(PAUSE_S)
    consumer.subscribe_lite_all()


def lite(config: ClientConfiguration) -> Any:
    """Lite topics that a simple consumer subscribes to, and the one that it leaves to another group."""
    sender, consumer = producer(config, topic=PARENT), LiteSimpleConsumer(PARENT, config, "workers")
    consumer.startup()
    subscribe(consumer, "s-1", "s-2")
    for number, name in enumerate(("s-1", "s-3", "s-2", "s-1")):
        sender.send(message(str(number), topic=PARENT, lite_topic=name))
    found: dict[str, list[str]] = {}
    deadline = time.monotonic() + DEADLINE_S
    while sum(map(len, found.values())) < 3 and time.monotonic() < deadline:
        for one in consumer.receive(16, 15) or ():
            found.setdefault(one.lite_topic, []).append(one.body.decode())
            consumer.ack(one)
    consumer.shutdown()
    sender.shutdown()
    return found


def lite_push(config: ClientConfiguration) -> Any:
    """A push consumer of a lite topic, in order; it fails to handle the second message once."""
    sender, listener = producer(config, topic=PARENT), InOrder(4)
    listener.failures = 1
    consumer = LitePushConsumer(config, "workers", PARENT, listener)
    consumer.startup()
    subscribe(consumer, "p-1")
    for number in range(1, 4):
        sender.send(message(str(number), topic=PARENT, lite_topic="p-1"))
    listener.complete.wait(DEADLINE_S)
    consumer.shutdown()
    sender.shutdown()
    return listener.bodies


def refused(config: ClientConfiguration) -> Any:
    """What a producer without the right is told."""
    sender = producer(config)
    try:
        sender.send(message("no"))
    except Exception as error:
        return str(error)
    finally:
        sender.shutdown()
    return "sent"


def light_queues(config: ClientConfiguration) -> Any:
    """What becomes of messages that name light queues, alone and in a transaction."""
    sender, said = producer(config, Committing()), {}
    for right, names in (("forbidden", "%LMQ%plant%2F7,%LMQ%plant%2F8"), ("allowed", "%LMQ%plant%2F7")):
        for kind in ("single", "transaction"):
            one = message(kind)
            one.add_property("INNER_MULTI_DISPATCH", names)
            try:
                if kind == "single":
                    sender.send(one)
                else:
                    transaction = sender.begin_transaction()
                    sender.send(one, transaction)
                    transaction.commit()
                said[f"{kind} {right}"] = "sent"
            except Exception as error:
                said[f"{kind} {right}"] = str(error)
    sender.shutdown()
    return said


def traced(config: ClientConfiguration) -> Any:
    """The trace context of a message that is sent with one and received."""
    context = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    sender = producer(config)
    first = message("traced")
    first.add_property("traceparent", context)
    sender.send(first)
    (found,) = (one for one in received(config, 2) if one.body == b"traced")
    sender.shutdown()
    return found.properties["traceparent"]


SCENARIOS: dict[str, Callable[[ClientConfiguration], Any]] = {
    each.__name__: each
    for each in (simple, push, ordered, delayed, priority, transactions, lite, lite_push, refused, light_queues, traced)
}

if __name__ == "__main__":
    result = SCENARIOS[sys.argv[1]](configuration(*sys.argv[2:]))
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()
