"""RocketMQ's C++ client, through its Python package `rocketmq`, consumes slowly while its brokers come and go.

Arguments: name server, topic, number of messages. It sends them, then consumes; prints `consumed N` after every
hundred, and in the end `complete`. It runs in an environment of its own, without this project.
"""

from __future__ import annotations

import sys
import threading
import time

from rocketmq.client import (  # type: ignore[import-not-found]
    Message,
    Producer,
    PushConsumer,
    RecvMessage,
    SendStatus,
)

PAUSE_S = 0.004


def main(name_server: str, topic: str, count: int) -> None:
    """Send, consume, end."""
    producer = Producer(f"{topic}_producer", timeout=10_000)
    producer.set_namesrv_addr(name_server)
    producer.start()
    for number in range(count):
        message = Message(topic)
        message.set_body(str(number))
        assert producer.send_sync(message).status == SendStatus.OK
    producer.shutdown()
    consumed: set[int] = set()
    done = threading.Event()

    def receive(message: RecvMessage) -> None:
        consumed.add(int(message.body))
        if len(consumed) % 100 == 0:
            print(f"consumed {len(consumed)}", flush=True)
        if len(consumed) == count:
            done.set()
        time.sleep(PAUSE_S)

    consumer = PushConsumer(f"{topic}_group")
    consumer.set_namesrv_addr(name_server)
    consumer.set_thread_count(1)
    consumer.set_message_batch_max_size(1)
    consumer.subscribe(topic, receive)
    consumer.start()
    done.wait()
    print("complete", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
