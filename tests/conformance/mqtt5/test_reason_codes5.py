"""Which malformed packet, or which protocol error, gets which reason code: one table, packet by packet.

The bytes and codes are those of the standard, written by hand; the clause stands beside each. A packet that cannot be
parsed is malformed (0x81), one that can be parsed and is not allowed, or not now, is a protocol error (0x82) [1.2], and
a more exact code is used where the standard names it. Both codecs are tested.

Control characters and non-characters SHOULD NOT be in a string, and a receiver MAY close on them [1.5.4]: this server
takes them, because a device that sends them would be cut off for what its other receivers take; U+0000 and surrogates
it may not take [MQTT-1.5.4-1] [MQTT-1.5.4-2].
"""

from __future__ import annotations

import pytest

from mqtt_proxy.mqtt.codec.limits import SessionLimits
from mqtt_proxy.mqtt.session import scan
from mqtt_proxy.mqtt.session.events import PublishBatch, Violated
from mqtt_proxy.mqtt.session.session import Session

HEAD = "00 04 4d515454 05"
CONNECT = f"10 10 {HEAD} 02 0000 03 21 0001 0000"
"""Clean start, receive maximum 1, no client id."""
LIMITS = SessionLimits(packet_size_bytes_max=200, receive_maximum=2, topic_alias_maximum=2, topic_bytes_max=100)

IN_CONNECT = [
    ("3.1.2.3 [MQTT-3.1.2-3]", f"10 0d {HEAD} 03 0000 00 0000", 0x81, "the reserved flag"),
    ("3.1.2.6 [MQTT-3.1.2-12]", f"10 0d {HEAD} 1e 0000 00 0000", 0x81, "will QoS 3"),
    ("3.1.2.6 [MQTT-3.1.2-11]", f"10 0d {HEAD} 0a 0000 00 0000", 0x81, "a will QoS without a will"),
    ("3.1.2.7 [MQTT-3.1.2-13]", f"10 0d {HEAD} 22 0000 00 0000", 0x81, "will retain without a will"),
    ("3.1.2.11.1", f"10 0e {HEAD} 02 0000 01 7f 0000", 0x81, "a property that there is none of"),
    ("2.2.2.2", f"10 10 {HEAD} 02 0000 03 230001 0000", 0x81, "a property of another packet"),
    ("3.1.2.11.2", f"10 17 {HEAD} 02 0000 0a 1100000001 1100000001 0000", 0x82, "session expiry twice"),
    ("3.1.2.11.3", f"10 10 {HEAD} 02 0000 03 210000 0000", 0x82, "receive maximum 0"),
    ("3.1.2.11.4", f"10 12 {HEAD} 02 0000 05 2700000000 0000", 0x82, "maximum packet size 0"),
    ("3.1.2.11.6", f"10 0f {HEAD} 02 0000 02 1902 0000", 0x82, "request response information 2"),
    ("3.1.2.11.7", f"10 0f {HEAD} 02 0000 02 1702 0000", 0x82, "request problem information 2"),
    ("3.1.2.11.10", f"10 11 {HEAD} 02 0000 04 16000161 0000", 0x82, "authentication data without a method"),
    ("1.5.4 [MQTT-1.5.4-1]", f"10 0e {HEAD} 02 0000 00 0001 ff", 0x81, "a client id that is not UTF-8"),
    ("1.5.4 [MQTT-1.5.4-1]", f"10 10 {HEAD} 02 0000 00 0003 eda080", 0x81, "a surrogate in the client id"),
    ("1.5.4 [MQTT-1.5.4-2]", f"10 0e {HEAD} 02 0000 00 0001 00", 0x81, "U+0000 in the client id"),
    ("1.5.5 [MQTT-1.5.5-1]", f"10 8d 00 {HEAD} 02 0000 00 0000", 0x81, "a length longer than it need be"),
    ("3.1.3", f"10 0f {HEAD} 02 0000 00 0000 ffff", 0x81, "bytes behind the last field"),
    ("3.1.2.2", "10 0d 00 04 4d515454 06 02 0000 00 0000", 0x84, "a level to come"),
]
"""(clause, CONNECT, code of the CONNACK, what is wrong)"""

CONNECTED = [
    ("2.1.2", "00 00", 0x81, "packet type 0"),
    ("2.1.3 [MQTT-2.1.3-1]", "80 06 0001 00 000161 00", 0x81, "SUBSCRIBE with flags 0"),
    ("2.1.3 [MQTT-2.1.3-1]", "c1 00", 0x81, "PINGREQ with a flag"),
    ("2.1.4", "c0 ff ff ff ff 01", 0x81, "a length of five bytes"),
    ("3.1 [MQTT-3.1.0-2]", CONNECT, 0x82, "a second CONNECT"),
    ("3.2", "20 03 00 00 00", 0x82, "CONNACK of a client"),
    ("3.9", "90 04 0001 00 00", 0x82, "SUBACK of a client"),
    ("3.11", "b0 04 0001 00 00", 0x82, "UNSUBACK of a client"),
    ("3.13", "d0 00", 0x82, "PINGRESP of a client"),
    ("3.15 [MQTT-4.12.0-7]", "f0 02 18 00", 0x82, "AUTH without a method in CONNECT"),
    ("3.3.1.2 [MQTT-3.3.1-4]", "36 06 000161 0001 00", 0x81, "PUBLISH with QoS 3"),
    ("3.3.1.1 [MQTT-3.3.1-2]", "38 04 000161 00", 0x81, "DUP with QoS 0"),
    ("2.2.1 [MQTT-2.2.1-3]", "32 06 000161 0000 00", 0x82, "PUBLISH with packet id 0"),
    ("3.3.2.1 [MQTT-4.7.3-1]", "30 03 0000 00", 0x82, "no topic and no alias"),
    ("3.3.2.1 [MQTT-3.3.2-2]", "30 05 0002 612b 00", 0x81, "a topic name with +"),
    ("3.3.2.1 [MQTT-3.3.2-2]", "30 05 0002 2361 00", 0x81, "a topic name with #"),
    ("1.5.4 [MQTT-1.5.4-1]", "30 06 0003 eda080 00", 0x81, "a surrogate in a topic name"),
    ("1.5.4 [MQTT-1.5.4-1]", "30 05 0002 c080 00", 0x81, "U+0000 in two bytes"),
    ("1.5.4 [MQTT-1.5.4-2]", "30 05 0002 6100 00", 0x81, "U+0000 in a topic name"),
    ("1.5.4 [MQTT-1.5.4-1]", "30 07 0004 f4908080 00", 0x81, "a code point behind the last one"),
    ("3.3.2.1", "30 04 000561 00", 0x81, "a topic longer than its packet"),
    ("3.3.2.3.2", "30 06 000161 02 0102", 0x82, "payload format 2"),
    ("3.3.2.3.4 [MQTT-3.3.2-8]", "30 07 000161 03 230000", 0x94, "topic alias 0"),
    ("3.3.2.3.4 [MQTT-3.3.2-9]", "30 07 000161 03 230003", 0x94, "a topic alias above the maximum"),
    ("3.3.2.1", "30 06 0000 03 230001", 0x82, "an alias never given"),
    ("3.3.2.3.5 [MQTT-3.3.2-14]", "30 08 000161 04 0800012b", 0x82, "a response topic with a wildcard"),
    ("3.3.2.3.8 [MQTT-3.3.4-6]", "30 06 000161 02 0b01", 0x82, "a subscription identifier of a client"),
    ("3.3.2.3", "30 08 000161 05 01010101", 0x81, "properties longer than their packet"),
    ("3.3.2.3", "30 05 000161 8000", 0x81, "a property length longer than it need be"),
    ("3.3.4 [MQTT-3.3.4-7]", "".join(f"32 06 000161 000{n} 00" for n in (1, 2, 3)), 0x93, "receive maximum exceeded"),
    ("3.1.2.11.4", "30 c6 01 " + "000161 00" + "00" * 194, 0x95, "one byte more than the maximum packet size"),
    ("3.4.2.1", "40 03 0001 05", 0x82, "PUBACK with a code it does not have"),
    ("2.2.1", "40 02 0000", 0x82, "PUBACK with packet id 0"),
    ("3.6.1 [MQTT-3.6.1-1]", "60 02 0001", 0x81, "PUBREL with flags 0"),
    ("3.8.3 [MQTT-3.8.3-2]", "82 03 0001 00", 0x82, "SUBSCRIBE without a filter"),
    ("3.8.3.1 [MQTT-3.8.3-5]", "82 07 0001 00 0001 61 40", 0x81, "a reserved bit of the options"),
    ("3.8.3.1", "82 07 0001 00 0001 61 03", 0x82, "maximum QoS 3"),
    ("3.8.3.1", "82 07 0001 00 0001 61 30", 0x82, "retain handling 3"),
    ("3.8.3.1 [MQTT-3.8.3-4]", "82 10 0001 00 000a 2473686172652f672f61 04", 0x82, "no local on a shared subscription"),
    ("3.8.2.1.2", "82 09 0001 02 0b00 0001 61 00", 0x82, "subscription identifier 0"),
    ("4.7.1.2 [MQTT-4.7.1-1]", "82 08 0001 00 0002 6123 00", 0x81, "# that does not stand alone"),
    ("4.7.1.3 [MQTT-4.7.1-2]", "82 08 0001 00 0002 612b 00", 0x81, "+ that is not a whole level"),
    ("4.7.3 [MQTT-4.7.3-1]", "82 06 0001 00 0000 00", 0x81, "an empty filter"),
    ("3.10.3 [MQTT-3.10.3-2]", "a2 03 0001 00", 0x82, "UNSUBSCRIBE without a filter"),
    ("3.14.1 [MQTT-3.14.1-1]", "e1 00", 0x81, "DISCONNECT with a flag"),
    ("3.14.2.2.2", "e0 07 00 05 1100000001", 0x82, "a session expiry after a CONNECT without one"),
    ("3.14.2.1", "e0 02 05 00", 0x82, "DISCONNECT with a code that there is none of"),
    ("4.7.3 [MQTT-4.7.3-3]", f"30 68 0065 {'61' * 101} 00", 0x90, "well formed, longer than this server takes"),
    ("4.7.3 [MQTT-4.7.3-3]", f"82 6b 0001 00 0065 {'61' * 101} 00", 0x8F, "a filter longer than this server takes"),
]
"""(clause, packets after an accepted CONNECT, code of the DISCONNECT, what is wrong)"""

TAKEN = ["01", "1f", "7f", "c280", "c29f", "efbfbe", "efbfbf", "efb790", "f09fbfbe", "f48fbfbf", "efbbbf"]
"""Control characters, non-characters, a byte order mark: U+0001, U+001F, U+007F, U+0080, U+009F, U+FFFE, U+FFFF,
U+FDD0, U+1FFFE, U+10FFFF, U+FEFF."""


@pytest.fixture(params=["pure", "compiled"], autouse=True)
def core(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both codecs in turn."""
    if request.param == "compiled" and scan.choice.name != "compiled":
        pytest.skip(f"no compiled twin: {scan.choice.reason}")
    core = scan.pure_core() if request.param == "pure" else scan.compiled_core()
    monkeypatch.setattr(scan, "runs", core.consume_runs)


def fresh() -> Session:
    return Session(LIMITS, assigned_client_id=lambda: "made")


def connected() -> Session:
    session = fresh()
    session.feed(bytes.fromhex(CONNECT), 0)
    session.answers.accept(False)
    session.take_bytes()
    return session


def named(row: tuple[str, str, int, str]) -> str:
    return f"{row[3]} {row[0]}"


@pytest.mark.parametrize("row", IN_CONNECT, ids=named)
def test_connect(row: tuple[str, str, int, str]) -> None:
    """[MQTT-4.13.1-1] CONNACK with the code, and the end."""
    session = fresh()
    events = session.feed(bytes.fromhex(row[1]), 0)
    assert [type(event) for event in events] == [Violated]
    answer = session.take_bytes()
    assert (answer[0], answer[2], answer[3]) == (0x20, 0, row[2])


@pytest.mark.parametrize("cut", [False, True], ids=["whole", "byte by byte"])
@pytest.mark.parametrize("row", CONNECTED, ids=named)
def test_connected(row: tuple[str, str, int, str], cut: bool) -> None:
    """[MQTT-4.13.1-1] DISCONNECT with the code, and the end, however the bytes arrive."""
    session, data = connected(), bytes.fromhex(row[1])
    events = [event for at in range(len(data)) for event in session.feed(data[at : at + 1], 0)] if cut else []
    events = events if cut else session.feed(data, 0)
    assert isinstance(events[-1], Violated)
    answer = session.take_bytes()
    assert (answer[0], answer[2]) == (0xE0, row[2])


@pytest.mark.parametrize("text", TAKEN)
def test_characters_that_should_not_be_there_are_accepted(text: str) -> None:
    """In a topic, twice: the second time it is cached."""
    session, name = connected(), bytes.fromhex(text)
    packet = bytes((0x30, len(name) + 3, 0, len(name))) + name + b"\0"
    (batch,) = session.feed(packet + packet, 0)
    assert isinstance(batch, PublishBatch)
    assert [one.topic for one in batch.publishes] == [name, name]


def test_the_largest_packet_is_the_one_announced_in_connack() -> None:
    """[MQTT-3.2.2-15] One of exactly that size is accepted, header included [3.1.2.11.4]."""
    session = fresh()
    session.feed(bytes.fromhex(CONNECT), 0)
    session.answers.accept(False)
    assert b"\x27\0\0\0\xc8" in session.take_bytes()
    packet = bytes.fromhex("30 c5 01 000161 00") + bytes(193)
    assert len(packet) == 200
    assert isinstance(session.feed(packet, 0)[0], PublishBatch)
    assert isinstance(session.feed(packet, 0)[0], PublishBatch)
