"""Send and receive with the official RocketMQ C++ client (PyPI package `rocketmq`); run by its own interpreter.

Arguments: name server address, topic, number of messages. Exit status 0 when every message was received.
"""

import sys
import threading

from rocketmq.client import Message, Producer, PushConsumer

DEADLINE_SECONDS = 30


def main(address, topic, count):
    expected = {f"body {number}" for number in range(count)}
    received, complete = set(), threading.Event()

    def on_message(message):
        body = message.body
        received.add(body.decode() if isinstance(body, bytes) else body)
        if received >= expected:
            complete.set()

    producer = Producer("PID-interop")
    producer.set_namesrv_addr(address)
    producer.start()
    for number in range(count):
        message = Message(topic)
        message.set_keys(f"key{number}")
        message.set_tags("interop")
        message.set_body(f"body {number}")
        assert producer.send_sync(message).status == 0
    consumer = PushConsumer("CID-interop")
    consumer.set_namesrv_addr(address)
    consumer.subscribe(topic, on_message)
    consumer.start()
    complete.wait(DEADLINE_SECONDS)
    consumer.shutdown()
    producer.shutdown()
    sys.stdout.write(f"received {len(received)} of {count}\n")
    return 0 if received == expected else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
