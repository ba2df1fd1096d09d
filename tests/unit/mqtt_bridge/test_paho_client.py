"""What paho lacks: the reason code of PUBREC, and texts of reason codes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from paho.mqtt.client import DisconnectFlags
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from mqtt_bridge.config import RuleConfig
from mqtt_bridge.message import OutgoingCopy, Target
from mqtt_bridge.paho_client import code_in_words, from_paho, in_words, to_paho, why_ended
from mqtt_bridge.peer import BridgeClient
from remoting.protocol.records.properties import MessageProperties
from tests.unit.mqtt_bridge.rig import connection, until
from tests.unit.mqtt_bridge.scripted_peer import PUBLISH, ScriptedPeer, packet

PUBREC, PUBREL, PUBCOMP = 0x50, 6, 0x70
RULE = RuleConfig(direction="out", filter="a/#")


async def settled(answer: bytes, completion: bytes = b"") -> tuple[list[int], list[int], str]:
    """Publish once with QoS 2, with these answers; returns the codes reported, the packets sent, and the end."""
    codes: list[int] = []
    async with ScriptedPeer() as scripted:

        def script(kind: int, body: bytes) -> bytes | None:
            if kind == PUBLISH:
                size = int.from_bytes(body[:2], "big")
                return packet(PUBREC, body[2 + size : 4 + size] + answer)
            return packet(PUBCOMP, body[:2] + completion) if kind == PUBREL else None

        scripted.answer = script
        peer = BridgeClient(connection(scripted.port, RULE, version="5"), "me", persistent=False, password=None)
        await peer.connect()
        peer.on_settled = lambda _packet_id, code: codes.append(code)
        peer.publish(OutgoingCopy(Target(b"a/b", 2, retain=False), b"x", None))
        ended = asyncio.ensure_future(peer.until_ended())
        await until(lambda: bool(codes) or ended.done())
        reason = ended.result() if ended.done() else ""
        await asyncio.gather(peer.close(), ended)
        return codes, [kind for kind, _ in scripted.packets], reason


async def test_a_refused_pubrec_is_the_answer() -> None:
    codes, kinds, _ = await settled(bytes((0x87, 10, 0x1F, 0, 7)) + b"not you")
    assert codes == [0x87]
    assert PUBREL not in kinds
    codes, kinds, _ = await settled(b"\x97")  # without properties
    assert codes == [0x97]


@pytest.mark.parametrize(("answer", "code"), [(b"", 0), (b"\0", 0), (b"\x10", 0x10), (b"\x10\0", 0x10)])
async def test_an_accepted_pubrec_is_released(answer: bytes, code: int) -> None:
    """And its code reported, which paho drops."""
    codes, kinds, _ = await settled(answer)
    assert codes == [code]
    assert PUBREL in kinds


async def test_a_message_that_was_accepted_is_not_refused_afterwards() -> None:
    """PUBCOMP 0x92: the peer has forgotten the packet id, after its PUBREC accepted the message [4.3.3]."""
    codes, kinds, _ = await settled(b"", b"\x92\0")
    assert codes == [0]
    assert PUBREL in kinds


@pytest.mark.parametrize("answer", [b"\xff", b"\x87\x05\x1f\0\x09"])
async def test_a_pubrec_that_cannot_be_read_ends_the_connection(answer: bytes) -> None:
    codes, _, reason = await settled(answer)
    assert codes == []
    assert "invalid MQTT" in reason


async def test_a_refusal_of_an_unknown_message_is_ignored() -> None:
    async with ScriptedPeer() as scripted:
        peer = BridgeClient(connection(scripted.port, RULE, version="5"), "me", persistent=False, password=None)
        await peer.connect()
        scripted.send(packet(PUBREC, b"\0\x07\x87"), packet(0xE0, b"\x8b\0"))
        assert await peer.until_ended() == (
            "the connection ended: the server ended the connection: server shutting down (0x8b)"
        )
        await peer.close()


def test_codes_in_words() -> None:
    said: Any = Properties(PacketTypes.PUBACK)  # type: ignore[no-untyped-call]
    said.ReasonString = "the disk is full"
    assert in_words(ReasonCode(PacketTypes.PUBACK, identifier=0x97), said) == "quota exceeded (0x97): the disk is full"
    assert code_in_words(PacketTypes.SUBACK, 0x87) == "not authorized (0x87)"
    assert code_in_words(PacketTypes.PUBACK, 0xFE) == "unknown code (0xfe)"
    assert code_in_words(PacketTypes.CONNACK, 0x9B) == "QoS not supported (0x9b)"


@pytest.mark.parametrize(
    ("from_server", "name", "is_v5", "words"),
    [
        (True, "Session taken over", True, "the server ended the connection: session taken over (0x8e)"),
        (False, "Normal disconnection", True, "closed by this side"),
        (False, "Keep alive timeout", True, "did not answer within the keep-alive time"),
        (False, "Protocol error", False, "invalid MQTT"),
        (False, "Unspecified error", True, "the connection was lost"),
        (False, "Unspecified error", False, "likely causes: the access list denies it, the disk is full"),
    ],
)
def test_why_a_connection_ended(from_server: bool, name: str, is_v5: bool, words: str) -> None:
    flags = DisconnectFlags(is_disconnect_packet_from_server=from_server)
    assert words in why_ended(flags, ReasonCode(PacketTypes.DISCONNECT, name), None, is_v5=is_v5)


FULL = MessageProperties(
    payload_format=1,
    expiry_s=9,
    content_type="tëxt".encode(),
    response_topic=b"r/1",
    correlation_data=b"\x00\xff",
    user=[(b"k", b"1"), (b"k", b"2"), (b"a", b"")],
)


def test_there_and_back_over_the_wire() -> None:
    packed = to_paho(FULL).pack()
    received = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    received.unpack(packed)  # type: ignore[no-untyped-call]
    assert from_paho(received) == FULL


def test_nothing_said() -> None:
    assert from_paho(None) is None
    assert from_paho(to_paho(MessageProperties())) is None


def test_a_pair_that_is_no_text_is_left_out() -> None:
    said = to_paho(MessageProperties(user=[(b"\xff", b"1"), (b"k", b"\xff"), (b"k", b"v")]))
    assert said.UserProperty == [("k", "v")]
