"""CPU per message of the MQTT session core, without sockets: parse, acknowledge, deliver, take acknowledgements.

Run: python benchmarks/hot/bench_mqtt_session.py, with --level-5 for plain messages of MQTT 5
Prints the best of several runs in µs of CPU per message. Aims: QoS 1 parse at 20 messages per read at most 0.7, deliver
at most 1.0 (pure Python).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from mqtt_proxy.mqtt.codec import packets
from mqtt_proxy.mqtt.codec.encode import encode, publish_head
from mqtt_proxy.mqtt.codec.limits import SessionLimits
from mqtt_proxy.mqtt.session.session import Session

LEVEL = 5 if "--level-5" in sys.argv else 4
ROUNDS = 9
MESSAGES = 20_000
PAYLOAD = bytes(100)
TOPIC = b"plant/7/line/3/temp"


def connected() -> Session:
    """A session past its CONNECT."""
    session = Session(SessionLimits(in_flight_max=1_000, receive_maximum=65_535), assigned_client_id=lambda: "bench")
    session.feed(encode(packets.Connect("bench", True, 60, level=LEVEL)), 0)
    session.answers.accept(False)
    session.take_bytes()
    return session


def best(run: Callable[[], None]) -> float:
    """Microseconds of CPU per message, the best of several runs."""
    run()
    figures = []
    for _ in range(ROUNDS):
        before = time.process_time_ns()
        run()
        figures.append(time.process_time_ns() - before)
    return min(figures) / MESSAGES / 1_000


def read_of(qos: int, per_read: int) -> bytes:
    """The bytes of one read: `per_read` publishes."""
    return b"".join(
        encode(packets.Publish(TOPIC, PAYLOAD, qos, False, False, n + 1 if qos else 0), LEVEL) for n in range(per_read)
    )


def parse(qos: int, per_read: int) -> float:
    """`feed` alone."""
    session, data = connected(), read_of(qos, per_read)

    def run() -> None:
        feed = session.feed
        pending = session.state.incoming.pending
        for _ in range(MESSAGES // per_read):
            feed(data, 1)
            pending.clear()

    return best(run)


def parse_and_acknowledge(per_read: int) -> float:
    """`feed`, `acknowledge` for the whole batch, `take_bytes`."""
    session, data = connected(), read_of(1, per_read)

    def run() -> None:
        for _ in range(MESSAGES // per_read):
            (batch,) = session.feed(data, 1)
            session.answers.acknowledge([publish.packet_id for publish in batch.publishes])  # type: ignore[union-attr]
            session.take_bytes()

    return best(run)


def deliver(qos: int, per_turn: int, prepared: bool) -> float:
    """`deliver` and the join of the write, with a window that is always free."""
    session = connected()
    window = session.state.outgoing.window
    head = publish_head(TOPIC, len(PAYLOAD), qos, False, False, LEVEL)

    def run() -> None:
        for _ in range(MESSAGES // per_turn):
            if prepared:
                for token in range(per_turn):
                    session.deliveries.deliver_prepared(head, PAYLOAD, qos, token)
            else:
                for token in range(per_turn):
                    session.deliveries.deliver(TOPIC, PAYLOAD, qos, False, False, token)
            session.take_bytes()
            window.clear()

    return best(run)


def take_acknowledgements(per_read: int) -> float:
    """PUBACKs of deliveries: window to tokens."""
    session = connected()
    data = b"".join(encode(packets.Puback(n + 1)) for n in range(per_read))
    filled = {n + 1: n for n in range(per_read)}
    window = session.state.outgoing.window

    def run() -> None:
        for _ in range(MESSAGES // per_read):
            window.update(filled)
            session.feed(data, 1)

    return best(run)


def main() -> None:
    """Print one line per figure."""
    for per_read in (1, 20, 200):
        print(f"parse QoS 0, {per_read:3} per read                     {parse(0, per_read):6.3f} µs/message")
        print(f"parse QoS 1, {per_read:3} per read                     {parse(1, per_read):6.3f} µs/message")
        print(
            f"parse + acknowledge QoS 1, {per_read:3} per read       {parse_and_acknowledge(per_read):6.3f} µs/message"
        )
        print(f"deliver QoS 0, {per_read:3} per turn                   {deliver(0, per_read, False):6.3f} µs/message")
        print(f"deliver QoS 1, {per_read:3} per turn                   {deliver(1, per_read, False):6.3f} µs/message")
        print(f"deliver QoS 1 prepared head, {per_read:3} per turn     {deliver(1, per_read, True):6.3f} µs/message")
        print(
            f"PUBACK in, {per_read:3} per read                       {take_acknowledgements(per_read):6.3f} µs/message"
        )


if __name__ == "__main__":
    main()
