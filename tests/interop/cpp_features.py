"""What RocketMQ's C++ client can do with a server, through its Python package `rocketmq`, one scenario after the other.

Arguments: name server, then the scenarios to run (none: all). Prints `NAME ok` or `NAME failed: REASON` for each and
ends with status 0. It runs in an environment of its own, without this project. With ACCESS_KEY and SECRET_KEY in the
environment, every client signs its requests. Its callbacks cannot ask for a message again.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable

from rocketmq.client import (  # type: ignore[import-not-found]
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    RecvMessage,
    SendStatus,
)

COUNT = 40
DEADLINE_S = 60
EARLY_S = 0.05
KEYS = (os.environ.get("ACCESS_KEY", ""), os.environ.get("SECRET_KEY", ""), "LOCAL")


class Features:
    """The scenarios; each gets a topic of its own."""

    def __init__(self, name_server: str) -> None:
        self.name_server = name_server
        self.producer = self.configured(Producer("cpp_producer", timeout=10_000))
        self.producer.start()

    def configured(self, client):
        """A client that knows name server and keys."""
        client.set_namesrv_addr(self.name_server)
        if KEYS[0]:
            client.set_session_credentials(*KEYS)
        return client

    def consume(
        self, topic: str, enough: Callable[[list[str]], bool], expression: str = "*", *, orderly: bool = False
    ) -> list[str]:
        """The bodies that a new group gets of a topic, in the order of arrival."""
        received: list[str] = []
        done = threading.Event()

        def receive(message: RecvMessage) -> None:
            received.append(message.body.decode())
            if enough(received):
                done.set()

        consumer = self.configured(PushConsumer(f"{topic}_readers", orderly=orderly))
        consumer.set_instance_name(topic)
        consumer.subscribe(topic, receive, expression)
        consumer.start()
        try:
            assert done.wait(DEADLINE_S), f"not everything came: {len(received)} messages"
        finally:
            consumer.shutdown()
        return received

    def expect(self, topic: str, numbers: range, expression: str = "*") -> None:
        """Consume these numbers and nothing else."""
        wanted = {str(number) for number in numbers}
        received = self.consume(topic, lambda bodies: set(bodies) >= wanted, expression)
        assert set(received) == wanted

    def send_numbers(self, topic: str) -> None:
        """Send all numbers, each acknowledged."""
        for number in range(COUNT):
            assert self.producer.send_sync(numbered(topic, number)).status == SendStatus.OK

    def sync(self, topic: str) -> None:
        self.send_numbers(topic)
        self.expect(topic, range(COUNT))

    def oneway(self, topic: str) -> None:
        self.producer.send_sync(numbered(topic, 0))
        for number in range(1, COUNT):
            self.producer.send_oneway(numbered(topic, number))
        self.expect(topic, range(COUNT))

    def batch(self, topic: str) -> None:
        self.producer.send_sync(numbered(topic, 0))
        self.producer.send_batch([numbered(topic, number) for number in range(1, COUNT)])
        self.expect(topic, range(COUNT))

    def orderly(self, topic: str) -> None:
        for number in range(COUNT):
            self.producer.send_orderly(numbered(topic, number), 1)
        received = self.consume(topic, lambda bodies: len(set(bodies)) == COUNT, orderly=True)
        assert list(dict.fromkeys(received)) == [str(number) for number in range(COUNT)]

    def delay_level(self, topic: str) -> None:
        due = time.time() + 5
        message = numbered(topic, 1)
        message.set_delay_time_level(2)
        self.producer.send_sync(message)
        self.consume(topic, bool)
        assert time.time() > due - EARLY_S

    def tags(self, topic: str) -> None:
        self.send_numbers(topic)
        self.expect(topic, range(0, COUNT, 2), "even || other")

    def pull(self, topic: str) -> None:
        self.send_numbers(topic)
        consumer = self.configured(PullConsumer(f"{topic}_readers"))
        consumer.start()
        try:
            found = {message.body.decode() for message in consumer.pull(topic)}
        finally:
            consumer.shutdown()
        assert found == {str(number) for number in range(COUNT)}


def numbered(topic: str, number: int) -> Message:
    """A message with a tag, a key and a property."""
    message = Message(topic)
    message.set_keys(f"key-{number}")
    message.set_tags("odd" if number % 2 else "even")
    message.set_property("number", str(number))
    message.set_body(str(number))
    return message


SCENARIOS = ("sync", "oneway", "batch", "orderly", "delay_level", "tags", "pull")


def main() -> None:
    """Run the scenarios that are named."""
    name_server, *wanted = sys.argv[1:]
    features = Features(name_server)
    for name in wanted or SCENARIOS:
        try:
            getattr(features, name)(f"cpp_{name}")
            print(name, "ok", flush=True)
        except Exception as error:
            print(f"{name} failed: {type(error).__name__} {error}".replace("\n", " "), flush=True)
    os._exit(0)  # the C++ library may hang in its own destructors


if __name__ == "__main__":
    main()
