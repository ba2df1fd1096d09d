"""The scripts' own encoder and reader give the bytes of the examples in the two OASIS standards."""

from __future__ import annotations

import pytest

from tests.conformance import wire
from tests.conformance.mqtt3 import script
from tests.conformance.mqtt5 import script5

LENGTHS = [
    (0, "00"),
    (127, "7f"),
    (128, "80 01"),
    (16_383, "ff 7f"),
    (16_384, "80 80 01"),
    (2_097_151, "ff ff 7f"),
    (2_097_152, "80 80 80 01"),
    (268_435_455, "ff ff ff 7f"),
    (64, "40"),
    (321, "c1 02"),
]
"""Tables 2.4 / 1-1, and the two numbers that 2.2.3 of 3.1.1 encodes in its text."""

EXAMPLES_3 = [
    (
        "3.1.2.10: user name, password, will of QoS 1, clean session, keep alive of 10 s",
        "connect id=c keepalive=10 clean=1 user=u password=p will=m will_topic=t will_qos=1",
        "10 19 00 04 4d 51 54 54 04 ce 00 0a 00 01 63 00 01 74 00 01 6d 00 01 75 00 01 70",
    ),
    (
        "3.1.2.7: a retained will of QoS 2 without clean session",
        "connect id=c keepalive=0 clean=0 will=m will_topic=t will_qos=2 will_retain=1",
        "10 13 00 04 4d 51 54 54 04 34 00 00 00 01 63 00 01 74 00 01 6d",
    ),
    ("3.2: CONNACK, session present", "connack present=1 code=0", "20 02 01 00"),
    ("3.2.2.3: not authorized", "connack code=5", "20 02 00 05"),
    ("3.3.2: topic a/b, packet id 10", "publish topic=a/b qos=1 id=10", "32 07 00 03 61 2f 62 00 0a"),
    ("3.3.1: DUP, QoS 2, RETAIN", "publish topic=a/b qos=2 id=10 dup=1 retain=1", "3d 07 00 03 61 2f 62 00 0a"),
    ("3.3.3: QoS 0 has no packet id", "publish topic=a/b payload=x", "30 06 00 03 61 2f 62 78"),
    ("3.4", "puback id=10", "40 02 00 0a"),
    ("3.5", "pubrec id=10", "50 02 00 0a"),
    ("3.6: with the reserved flags", "pubrel id=10", "62 02 00 0a"),
    ("3.7", "pubcomp id=10", "70 02 00 0a"),
    (
        "3.8.3: a/b with QoS 1, c/d with QoS 2, packet id 10",
        "subscribe id=10 filter=a/b:1 filter=c/d:2",
        "82 0e 00 0a 00 03 61 2f 62 01 00 03 63 2f 64 02",
    ),
    ("3.9.3: QoS 0, QoS 2, failure", "suback id=10 codes=0,2,128", "90 05 00 0a 00 02 80"),
    ("3.10.3: a/b and c/d", "unsubscribe id=10 filter=a/b filter=c/d", "a2 0c 00 0a 00 03 61 2f 62 00 03 63 2f 64"),
    ("3.11", "unsuback id=10", "b0 02 00 0a"),
    ("3.12", "pingreq", "c0 00"),
    ("3.13", "pingresp", "d0 00"),
    ("3.14", "disconnect", "e0 00"),
]
"""(section of 3.1.1, the line of a script, the bytes)"""

EXAMPLES_5 = [
    (
        "3.1.2.12: the flags of 3.1.1's example, keep alive of 10 s, a session expiry interval of 10 s",
        "connect id=c keepalive=10 user_name=u password=p will=m will_topic=t will_qos=1 session_expiry=10",
        "10 20 00 04 4d 51 54 54 05 ce 00 0a 05 11 00 00 00 0a 00 01 63 00 00 01 74 00 01 6d 00 01 75 00 01 70",
    ),
    (
        "3.1.3.2: the properties of a will stand before its topic",
        "connect id=c keepalive=0 will=m will_topic=t will_delay=5",
        "10 1a 00 04 4d 51 54 54 05 06 00 00 00 00 01 63 05 18 00 00 00 05 00 01 74 00 01 6d",
    ),
    ("3.2: success", "connack present=0 code=0", "20 03 00 00 00"),
    ("3.2.2.3.3: receive maximum 20", "connack code=0 receive_max=20", "20 06 00 00 03 21 00 14"),
    ("3.3.2.4: topic a/b, packet id 10", "publish topic=a/b qos=1 id=10", "32 08 00 03 61 2f 62 00 0a 00"),
    ("3.3.2.3.8: identifier 200", "publish topic=a sub_id=200", "30 07 00 01 61 03 0b c8 01"),
    (
        "3.3.2.3: all of a message",
        "publish topic=a format=1 expiry=10 content_type=t response_topic=r correlation=00ff user=k:v alias=2",
        "30 22 00 01 61 1e 01 01 02 00 00 00 0a 03 00 01 74 08 00 01 72 09 00 02 00 ff 23 00 02 26 00 01 6b 00 01 76",
    ),
    ("3.4.2.1: reason 0 may be left out", "puback id=10", "40 02 00 0a"),
    ("3.4.2.2.1: without properties", "puback id=10 code=0x10", "40 03 00 0a 10"),
    ("3.4.2.2.2", "puback id=10 code=0x87 reason_string=no", "40 09 00 0a 87 05 1f 00 02 6e 6f"),
    ("3.6", "pubrel id=10 code=0x92", "62 03 00 0a 92"),
    (
        "3.8.3: a/b with QoS 1, c/d with QoS 2, packet id 10, no properties",
        "subscribe id=10 filter=a/b:1 filter=c/d:2",
        "82 0f 00 0a 00 00 03 61 2f 62 01 00 03 63 2f 64 02",
    ),
    ("3.9.3", "suback id=10 codes=0,2,0x80", "90 06 00 0a 00 00 02 80"),
    ("3.10.3: a/b and c/d", "unsubscribe id=10 filter=a/b filter=c/d", "a2 0d 00 0a 00 00 03 61 2f 62 00 03 63 2f 64"),
    ("3.11.3", "unsuback id=10 codes=0,0x11", "b0 05 00 0a 00 00 11"),
    ("3.14.2.1: reason 0 may be left out", "disconnect", "e0 00"),
    ("3.14.2.2.2", "disconnect session_expiry=10", "e0 07 00 05 11 00 00 00 0a"),
    ("3.15.2.2", "auth code=0x18 auth_method=m auth_data=01", "f0 0a 18 08 15 00 01 6d 16 00 01 01"),
]
"""(section of 5.0, the line of a script, the bytes)"""


@pytest.mark.parametrize(("value", "encoded"), LENGTHS)
def test_variable_byte_integers(value: int, encoded: str) -> None:
    """In both directions."""
    assert wire.variable(value) == bytes.fromhex(encoded)
    assert wire.read_variable(bytes.fromhex(encoded), 0) == (value, len(bytes.fromhex(encoded)))


def test_strings() -> None:
    """The string A and U+2A6D4 of figure 1.2 (3.1.1) and 1-2 (5.0)."""
    assert wire.string("A\U0002a6d4") == bytes.fromhex("00 05 41 f0 aa 9b 94")


@pytest.mark.parametrize(("section", "line", "encoded"), EXAMPLES_3, ids=lambda value: value.split(":")[0].split()[0])
def test_packets_of_3_1_1(section: str, line: str, encoded: str) -> None:
    """A line of a script becomes the bytes of the standard."""
    assert script.packet_of(line.split()) == bytes.fromhex(encoded), section


@pytest.mark.parametrize(("section", "line", "encoded"), EXAMPLES_5, ids=lambda value: value.split(":")[0].split()[0])
def test_packets_of_5_0(section: str, line: str, encoded: str) -> None:
    """A line of a script becomes the bytes of the standard."""
    assert script5.packet_of(line.split()) == bytes.fromhex(encoded), section


def test_a_packet_is_parsed() -> None:
    """A PUBLISH, a CONNACK, a SUBACK, and the short forms that leave a reason of 0 out [3.4.2.1, 3.14.2.1]."""
    raw = bytes.fromhex("3b 0f 00 01 61 00 0a 08 0b c8 01 02 00 00 00 0a 78")
    assert wire.take_apart(raw) == (
        0x3B,
        b"\0\1a",
        10,
        [(0x0B, b"\xc8\1"), (0x02, b"\0\0\0\n")],
        b"x",
    )
    assert wire.take_apart(bytes.fromhex("20 06 01 00 03 21 00 14")) == (0x20, b"\1\0", 0, [(0x21, b"\0\x14")], b"")
    assert wire.take_apart(bytes.fromhex("90 05 00 0a 00 02 80")) == (0x90, b"", 10, [], b"\2\x80")
    assert wire.take_apart(bytes.fromhex("40 02 00 0a")) == wire.take_apart(bytes.fromhex("40 04 00 0a 00 00"))
    assert wire.take_apart(bytes.fromhex("e0 00")) == wire.take_apart(bytes.fromhex("e0 01 00"))


@pytest.mark.parametrize(
    "raw",
    [
        "20 03 00 00 01",
        "20 05 00 00 02 7f 00",
        "20 05 00 00 02 21 00",
        "20 03 00 00 00 00",
        "30 04 00 01 61 80",
        "82 02 00 0a",
        "20 83 00 00 00 00",
    ],
)
def test_packets_outside_the_standard_are_refused(raw: str) -> None:
    """Wrong lengths, unknown properties, packets of clients."""
    with pytest.raises((AssertionError, IndexError)):
        wire.take_apart(bytes.fromhex(raw))


def test_an_incomplete_packet() -> None:
    """Its length is known once it is complete."""
    assert [
        wire.whole_packet(bytes.fromhex(raw)) for raw in ("", "40", "40 02 00", "40 02 00 0a", "40 02 00 0a 40")
    ] == [
        0,
        0,
        0,
        4,
        4,
    ]
