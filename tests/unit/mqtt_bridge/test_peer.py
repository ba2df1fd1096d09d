"""One connection to a peer: its beginning, its end, and what passes between."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from mqtt_bridge import peer as peer_module
from mqtt_bridge.config import RuleConfig
from mqtt_bridge.message import OutgoingCopy, Target
from mqtt_bridge.peer import BridgeClient, PeerLostError, Room
from tests.unit.mqtt_bridge.rig import connection, installation, until
from tests.unit.mqtt_bridge.scripted_peer import CONNECT, PUBACK, ScriptedPeer, packet, publish_packet

RULE = RuleConfig(direction="in", filter="a/#")


def made(port: int, *, persistent: bool = True, **settings: Any) -> BridgeClient:
    return BridgeClient(connection(port, RULE, **settings), "me", persistent=persistent, password="secret")


def test_room_holds_the_network_thread_until_there_is_some() -> None:
    room = Room(100)
    room.take(150)  # alone it fits
    taken = threading.Event()
    thread = threading.Thread(target=lambda: (room.take(60), taken.set()))
    thread.start()
    assert not taken.wait(0.05)
    room.give(150)
    assert taken.wait(5)
    thread.join()
    waiting = threading.Thread(target=room.take, args=(60,))
    waiting.start()
    room.close()
    waiting.join(5)
    assert not waiting.is_alive()
    assert room._used == 120


async def test_what_the_peer_said_in_its_connack() -> None:
    # receive maximum 7, maximum QoS 1, no retain, maximum packet size 1000
    said = bytes.fromhex("2100072401250027000003e8")
    async with ScriptedPeer(connack_properties=said) as scripted:
        one = made(scripted.port, version="5", username="u")
        welcome = await one.connect()
        assert (welcome.receive_maximum, welcome.qos_max, welcome.retain, welcome.packet_bytes_max) == (
            7,
            1,
            False,
            1000,
        )
        assert not welcome.session_present
        assert one.up
        kind, body = scripted.packets[0]
        assert kind == CONNECT
        assert b"secret" in body
        await one.close()
        assert await one.until_ended() in ("closed by this side", "the connection ended: closed by this side")
        assert not one.up


async def test_why_there_is_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PeerLostError, match="cannot connect to 127"):
        await made(1).connect()
    async with ScriptedPeer(version=4) as scripted:
        scripted.connack_code = 5
        one = made(scripted.port)
        with pytest.raises(PeerLostError, match="refused the connection: not authorized"):
            await one.connect()
        await one.close()
        scripted.answer = lambda _kind, _body: b""
        monkeypatch.setattr(peer_module, "CONNECT_TIMEOUT_S", 0.1)
        silent = made(scripted.port)
        with pytest.raises(PeerLostError, match="did not answer CONNECT"):
            await silent.connect()
        await silent.close()


async def test_messages_both_ways_and_the_end(tmp_path: Path) -> None:
    """Against an installation: subscribe, publish, acknowledge by hand, get the end."""
    async with installation(tmp_path / "peer") as app:
        one = made(app.ports()["mqtt"])
        messages: list[Any] = []
        settled: list[tuple[int, int]] = []
        one.on_message = messages.append
        one.on_settled = lambda packet_id, code: settled.append((packet_id, code))
        await one.connect()
        assert await one.subscribe([("a/#", 1), ("b", 0)]) == [1, 0]
        numbers = [one.publish(OutgoingCopy(Target(b"a/x", qos, False), b"%d" % qos)) for qos in (0, 1)]
        await until(lambda: len(messages) == 2 and len(settled) == 2)
        assert settled == [(number, 0) for number in numbers]
        assert [message.payload for message in messages] == [b"0", b"1"]
        await one.close()
        # Nothing was acknowledged: the session sends it again.
        again = made(app.ports()["mqtt"])
        repeated: list[Any] = []
        again.on_message = lambda message: (repeated.append(message), again.acknowledge(message.mid))
        assert (await again.connect()).session_present
        await until(lambda: len(repeated) == 1)
        assert (repeated[0].payload, repeated[0].dup) == (b"1", True)
    assert "the connection ended" in await again.until_ended()
    await again.close()
    with pytest.raises(PeerLostError):
        again.publish(OutgoingCopy(Target(b"a", 1, False), b""))
    with pytest.raises(PeerLostError):
        await again.subscribe([("a", 1)])


async def test_giving_up_says_why() -> None:
    async with ScriptedPeer() as scripted:
        one = made(scripted.port, version="5")
        await one.connect()
        one.give_up("enough")
        assert await one.until_ended() == "enough"
        one.acknowledge(1)  # nothing is said to a connection that ended
        await one.close()
        assert all(kind != PUBACK for kind, _ in scripted.packets)


async def test_no_answer_to_subscribe(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ScriptedPeer(version=4) as scripted:
        scripted.answer = lambda kind, _body: None if kind == CONNECT else b""
        one = made(scripted.port)
        await one.connect()
        monkeypatch.setattr(peer_module, "CONNECT_TIMEOUT_S", 0.1)
        with pytest.raises(PeerLostError, match="no answer to SUBSCRIBE"):
            await one.subscribe([("a/#", 1)])
        await one.close()


async def test_a_topic_that_is_no_text_ends_the_connection() -> None:
    async with ScriptedPeer(version=4) as scripted:
        one = made(scripted.port)
        await one.connect()
        scripted.send(publish_packet(b"\xff", 1, b"x", None))
        assert "not UTF-8" in await one.until_ended()
        await one.close()


async def test_a_missing_ca_file_is_said(tmp_path: Path) -> None:
    one = made(1, tls=True, ca_file=tmp_path / "none.pem")
    with pytest.raises(PeerLostError, match="No such file"):
        await one.connect()
    assert packet(0xE0, b"") == b"\xe0\0"
    await asyncio.sleep(0)
