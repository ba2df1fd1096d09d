"""History on SUBSCRIBE against real processes, in both versions: first the past, then live, each message once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.processes.rig import DEADLINE_S, Client, Server, no_traceback

pytestmark = pytest.mark.processes

TOPIC = "line/a"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A started server that is ended after the test."""
    started = Server(tmp_path / "data")
    started.start()
    yield started
    started.kill_if_running()


class Client5(Client):
    """The same client with MQTT 5."""

    def __init__(self, server: Server, client_id: str, *, expiry_s: int = 0, manual_ack: bool = False) -> None:
        self.messages, self.latest, self.granted = [], {}, []
        self.changed, self.present, self.code = threading.Condition(), None, -1
        self.client = mqtt.Client(
            mqtt.CallbackAPIVersion.VERSION2, client_id, protocol=mqtt.MQTTv5, manual_ack=manual_ack
        )
        self.client.max_inflight_messages_set(200)
        self.client.max_queued_messages_set(0)
        self.client.on_connect, self.client.on_message = self._connected, self._received
        self.client.on_subscribe = self._subscribed
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = expiry_s
        self.client.connect("127.0.0.1", server.port, clean_start=not expiry_s, properties=properties)
        self.client.loop_start()
        self.until(lambda: self.present is not None)

    def wish(self, *pairs: tuple[str, str], name: str = TOPIC, qos: int = 1) -> list[int]:
        """SUBSCRIBE with user properties; returns the codes of the SUBACK."""
        properties = Properties(PacketTypes.SUBSCRIBE)
        properties.UserProperty = list(pairs)
        self.granted = []
        self.client.subscribe(name, qos, properties=properties)
        self.until(lambda: bool(self.granted))
        return self.granted


def until_last(client: Client, last: int, topic: str = TOPIC) -> list[int]:
    """Wait for the number `last`; returns all numbers in order of arrival."""
    client.until(lambda: client.latest.get(topic) == b"%d" % last)
    return client.numbers(topic)


def test_the_last_messages_then_live(server: Server) -> None:
    """By filter in 3.1.1 and by user property in 5, each QoS; unsubscribed from by either name."""
    publisher = Client(server, "publisher")
    publisher.publish_many(TOPIC, 0, 100)
    publisher.publish(TOPIC, b"100", retain=True)
    clients: list[tuple[Client, str]] = []
    for qos in (0, 1):
        old = Client(server, f"old-{qos}")
        assert old.subscribe((f"$history/last=10/{TOPIC}", qos)) == [qos]
        new = Client5(server, f"new-{qos}")
        assert new.wish(("last", "10"), qos=qos) == [qos]
        clients += [(old, f"$history/last=10/{TOPIC}"), (new, TOPIC)]
    publisher.publish_many(TOPIC, 101, 50)
    for client, name in clients:
        assert until_last(client, 150) == list(range(91, 151))
        assert not any(message.retain for message in client.messages)
        client.unsubscribe(name)
        client.subscribe(("other", 0))
    publisher.publish(TOPIC, b"151")
    publisher.publish("other", b"0")
    for client, _ in clients:
        client.until(lambda client=client: "other" in client.latest)
        assert client.latest[TOPIC] == b"150"
        client.close()
    assert publisher.granted == []
    no_traceback(server)


def test_from_an_offset_and_a_time_while_messages_flow(server: Server) -> None:
    """No gap and no repeat where history meets live messages; a request that is not understood is refused."""
    publisher = Client(server, "publisher")
    publisher.publish_many(TOPIC, 0, 2_000)
    sent = [publisher.client.publish(TOPIC, b"%d" % number, 1) for number in range(2_000, 6_000)]
    client = Client5(server, "reader")
    assert client.wish(("from-offset", "500")) == [1]
    everything = Client(server, "everything")
    assert everything.subscribe((f"$history/from-time=2020-01-01T00:00:00Z/{TOPIC}", 1)) == [1]
    for info in sent:
        info.wait_for_publish(DEADLINE_S)
    assert until_last(client, 5_999) == list(range(500, 6_000))
    assert until_last(everything, 5_999) == list(range(6_000))
    assert client.wish(("from-time", "soon")) == [0x83]
    assert client.wish(("last", "1"), ("last", "2")) == [0x83]
    assert client.wish(("last", "1"), name="$share/g/line/a") == [0x83]
    assert everything.subscribe(("$history/last=x/line/a", 1), ("$history/line/a", 1)) == [128, 128]
    for one in (client, everything, publisher):
        one.close()


def test_a_durable_session_continues_in_the_middle_of_its_history(server: Server) -> None:
    """Disconnected and the server killed halfway: what was not acknowledged comes, then the rest, then live ones."""
    publisher = Client(server, "publisher")
    publisher.publish_many(TOPIC, 0, 5_000)
    durable = Client5(server, "durable", expiry_s=600, manual_ack=True)
    assert durable.wish(("from-offset", "0")) == [1]
    durable.until(lambda: len(durable.messages) >= 200)
    for message in durable.messages[:100]:
        durable.client.ack(message.mid, message.qos)
    durable.vanish()
    server.kill()
    publisher.client.loop_stop()
    server.start()
    again = Client5(server, "durable", expiry_s=600)
    assert again.present
    publisher = Client(server, "publisher-2")
    publisher.publish_many(TOPIC, 5_000, 100)
    numbers = until_last(again, 5_099)
    assert set(numbers) >= set(range(100, 5_100))
    assert list(dict.fromkeys(numbers)) == sorted(set(numbers))
    assert len(numbers) == len(set(numbers))
    for one in (again, publisher):
        one.close()


def test_subscribing_again_with_a_start_goes_back(server: Server) -> None:
    """An existing subscription gets a new position; without a start its position stays."""
    publisher = Client(server, "publisher")
    client = Client5(server, "client")
    assert client.wish() == [1]
    publisher.publish_many(TOPIC, 0, 50)
    until_last(client, 49)
    assert client.wish() == [1]
    assert client.wish(("last", "5")) == [1]
    client.until(lambda: len(client.messages) == 55)
    publisher.publish_many(TOPIC, 50, 10)
    assert until_last(client, 59) == [*range(50), *range(45, 50), *range(50, 60)]
    for one in (client, publisher):
        one.close()


def test_a_wildcard_filter_reaches_back_before_its_queue(server: Server) -> None:
    """It had no subscriber: its history is in the parent queues; then its queue, then live; each once."""
    publisher = Client(server, "publisher")
    for number in range(1_200):
        publisher.client.publish(f"line/{number % 7}/temp", b"%d" % number, 1)
        publisher.client.publish(f"line/{number % 7}/other", b"x", 0)
    publisher.publish("line/0/temp", b"1200")
    first = Client5(server, "first")
    assert first.wish(("from-offset", "0"), name="line/+/temp") == [1]
    infos = [publisher.client.publish(f"line/{number % 7}/temp", b"%d" % number, 1) for number in range(1_201, 2_000)]
    second = Client(server, "second")
    assert second.subscribe(("$history/last=1500/line/+/temp", 1)) == [1]
    for info in infos:
        info.wait_for_publish(DEADLINE_S)
    publisher.publish("line/0/temp", b"2000")
    for client, expected in ((first, 0), (second, None)):
        client.until(lambda client=client: client.latest.get("line/0/temp") == b"2000")
        numbers = [int(message.payload) for message in client.messages]
        begin = numbers[0] if expected is None else expected
        assert numbers == list(range(begin, 2_001))
        assert 2_001 - begin >= 1_500 or expected is not None
        client.close()
    everything = Client5(server, "everything")
    assert everything.wish(("last", "3"), name="#") == [1]
    everything.until(lambda: len(everything.messages) >= 3)
    assert [int(message.payload) for message in everything.messages] == [1_998, 1_999, 2_000]
    everything.close()
    publisher.close()
    no_traceback(server)


def test_a_durable_session_continues_before_its_queue(server: Server) -> None:
    """Disconnected, then the server killed, both in the middle: it continues where it was, in order, without a gap."""
    publisher = Client(server, "publisher")
    publisher.publish_many("line/a", 0, 3_000)
    got: list[int] = []
    for turn in range(3):
        durable = Client5(server, "durable", expiry_s=600, manual_ack=True)
        if turn == 0:
            assert durable.wish(("from-time", "0"), name="line/#") == [1]
        durable.until(lambda durable=durable: len(durable.messages) >= 150)
        acknowledged = durable.messages[:120]
        for message in acknowledged:
            durable.client.ack(message.mid, message.qos)
        durable.subscribe(("other", 0))  # answered after the PUBACKs
        got += [int(message.payload) for message in acknowledged]
        if turn == 2:
            time.sleep(0.6)  # longer than the interval at which acknowledgements are written
            server.kill()
            durable.client.loop_stop()
            publisher.client.loop_stop()
            server.start()
        else:
            durable.client.disconnect()
            durable.client.loop_stop()
    assert got == list(range(360))
    last = Client5(server, "durable", expiry_s=600)
    assert last.present
    fresh = Client(server, "publisher-2")
    fresh.publish_many("line/a", 3_000, 50)
    numbers = until_last(last, 3_049, "line/a")
    assert list(dict.fromkeys(numbers)) == list(range(360, 3_050))
    assert len(numbers) == len(set(numbers))
    for one in (last, fresh):
        one.close()
    no_traceback(server)
