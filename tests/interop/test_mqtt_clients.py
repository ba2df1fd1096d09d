"""The features that users rely on, with every client library against `lightmq up`.

The adapters are in `mqtt_clients.py`; each scenario runs with each of them, in each version and transport.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from tests.interop.mqtt_clients import TCP, WEBSOCKETS, Face, Paho
from tests.processes.rig import Server, no_traceback

pytestmark = [pytest.mark.processes, pytest.mark.timeout(60)]
NUMBERS = count()
ALL = pytest.mark.parametrize("library", [*TCP, *WEBSOCKETS], ids=lambda each: each.__name__)
WITH_PROPERTIES = pytest.mark.parametrize(
    "library", [each for each in (*TCP, *WEBSOCKETS) if each.version == 5], ids=lambda each: each.__name__
)


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    """One server for all; its ports by protocol."""
    server = Server(tmp_path_factory.mktemp("clients") / "data", "--set", "proxy.listen.ws_port=0")
    server.start()
    yield server.ports
    server.kill_if_running()
    no_traceback(server)


class Room:
    """Topics, client ids and connections of one test."""

    def __init__(self, ports: dict[str, int]) -> None:
        self.topic = f"room{next(NUMBERS)}"
        self._ports = ports

    async def enter(self, library: type[Face], name: str, **how: Any) -> Face:
        """A connected client."""
        made = library(f"{self.topic}-{name}", **how)
        await made.connect(self._ports["mqtt-ws" if library.websockets else "mqtt"])
        return made


@pytest.fixture
def room(ports: dict[str, int]) -> Room:
    return Room(ports)


@ALL
async def test_every_qos_both_ways(library: type[Face], room: Room) -> None:
    """A message arrives once, in order, with the lower QoS of message and subscription."""
    one = await room.enter(library, "one")
    for granted in (0, 1, 2):
        await one.subscribe(f"{room.topic}/{granted}", granted)
    for granted in (0, 1, 2):
        for qos in (0, 1, 2):
            await one.publish(f"{room.topic}/{granted}", b"%d" % qos, qos)
    await one.until(lambda: len(one.messages) == 9)
    for granted in (0, 1, 2):
        here = [message for message in one.messages if message.topic.endswith(f"/{granted}")]
        assert [(message.payload, message.qos) for message in here] == [
            (b"%d" % qos, min(qos, granted)) for qos in (0, 1, 2)
        ]
    await one.close()


@ALL
async def test_two_hundred_of_each_qos_keep_their_order(library: type[Face], room: Room) -> None:
    one, two = await room.enter(library, "one"), await room.enter(library, "two")
    await two.subscribe(f"{room.topic}/#", 2)
    for qos in (0, 1, 2):
        for number in range(200):
            await one.publish(f"{room.topic}/{qos}", b"%d" % number, qos)
    await two.until(lambda: len(two.messages) == 600)
    for qos in (0, 1, 2):
        numbers = [int(message.payload) for message in two.messages if message.topic.endswith(f"/{qos}")]
        assert numbers == list(range(200))
    await one.close()
    await two.close()


@ALL
async def test_retained_messages(library: type[Face], room: Room) -> None:
    """Later subscribers get the last one with the retain flag; an empty one deletes it."""
    one = await room.enter(library, "one")
    for payload in (b"old", b"new"):
        await one.publish(f"{room.topic}/state", payload, 1, retain=True)
    watcher = await room.enter(Paho, "watcher")
    await watcher.subscribe(f"{room.topic}/#", 1)
    await watcher.until(lambda: any(message.payload == b"new" for message in watcher.messages))
    late = await room.enter(library, "late")
    await late.subscribe(f"{room.topic}/#", 1)
    await late.until(lambda: len(late.messages) == 1)
    assert (late.messages[0].payload, late.messages[0].retain) == (b"new", True)
    await one.publish(f"{room.topic}/state", b"", 1, retain=True)
    await late.until(lambda: len(late.messages) == 2)
    assert (late.messages[1].payload, late.messages[1].retain) == (b"", False)
    later = await room.enter(library, "later")
    await later.subscribe(f"{room.topic}/#", 1)
    await later.publish(f"{room.topic}/live", b"", 1)
    await later.until(lambda: bool(later.messages))
    assert later.messages[0].topic.endswith("/live")
    for each in (one, watcher, late, later):
        await each.close()


@ALL
async def test_a_will_of_who_vanished_and_none_of_who_left(library: type[Face], room: Room) -> None:
    watcher = await room.enter(Paho, "watcher")
    await watcher.subscribe(f"{room.topic}/#", 1)
    left = await room.enter(library, "left", will=(f"{room.topic}/left", b"gone", 1, False))
    await left.close()
    lost = await room.enter(library, "lost", will=(f"{room.topic}/lost", b"gone", 1, False))
    await lost.vanish()
    await watcher.until(lambda: bool(watcher.messages))
    assert [message.topic for message in watcher.messages] == [f"{room.topic}/lost"]
    await watcher.close()


@ALL
async def test_a_session_collects_what_comes_while_its_client_is_away(library: type[Face], room: Room) -> None:
    first = await room.enter(library, "kept", clean=False)
    assert not first.present
    await first.subscribe(f"{room.topic}/#", 2)
    await first.close()
    speaker = await room.enter(Paho, "speaker")
    for number in range(50):
        await speaker.publish(f"{room.topic}/x", b"%d" % number, number % 3)
    again = await room.enter(library, "kept", clean=False)
    assert again.present in (True, None)  # not every library reports it
    await again.until(lambda: len(again.messages) >= 50)
    numbers = [int(message.payload) for message in again.messages]
    for qos in (0, 1, 2):  # a library delivers a QoS 2 message when its handshake is complete; later ones overtake it
        assert [number for number in numbers if number % 3 == qos] == list(range(qos, 50, 3))
    await again.close()
    forgotten = await room.enter(library, "kept", clean=True)
    assert not forgotten.present
    await speaker.publish(f"{room.topic}/x", b"nobody", 1)
    await forgotten.subscribe(f"{room.topic}/y", 0)
    await speaker.publish(f"{room.topic}/y", b"only this", 1)
    await forgotten.until(lambda: bool(forgotten.messages))
    assert forgotten.messages[0].payload == b"only this"
    await forgotten.close()
    await speaker.close()


@WITH_PROPERTIES
async def test_user_properties_and_content_type(library: type[Face], room: Room) -> None:
    """In order, with repeats, also for retained messages."""
    one = await room.enter(library, "one")
    await one.subscribe(f"{room.topic}/#", 1)
    await one.publish(f"{room.topic}/a", b"x", 1, retain=True)
    await one.until(lambda: len(one.messages) == 1)
    late = await room.enter(library, "late")
    await late.subscribe(f"{room.topic}/#", 1)
    await late.until(lambda: len(late.messages) == 1)
    for client in (one, late):
        assert client.messages[0].said == {"user": [("k", "1"), ("k", "2")], "content_type": "text/plain"}
        await client.close()
