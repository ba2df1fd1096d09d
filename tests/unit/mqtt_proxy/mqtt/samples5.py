"""Packets of MQTT 5: one of each kind with all its fields, and as strategies."""

from __future__ import annotations

from hypothesis import strategies as st

from mqtt_proxy.mqtt.codec import packets
from mqtt_proxy.mqtt.codec import properties as props
from remoting.protocol.records.properties import MessageProperties

USER = [(b"k", b"v"), (b"k", b"w"), (b"", b"")]
MESSAGE = MessageProperties(1, 60, b"text/plain", b"answer/here", b"\x00\xff", USER)

EVERYTHING: list[packets.Packet] = [
    packets.Connect(
        "dev",
        True,
        30,
        "ann",
        b"pw",
        packets.Will(b"w", b"gone", 2, True, MESSAGE, 9),
        5,
        {
            props.SESSION_EXPIRY: 100,
            props.RECEIVE_MAXIMUM: 10,
            props.MAXIMUM_PACKET_SIZE: 1_000,
            props.TOPIC_ALIAS_MAXIMUM: 5,
            props.REQUEST_RESPONSE_INFORMATION: 1,
            props.REQUEST_PROBLEM_INFORMATION: 0,
            props.USER: USER,
            props.AUTH_METHOD: b"m",
            props.AUTH_DATA: b"\x00",
        },
    ),
    packets.Connect("", False, 0, None, b"only a password", level=5),
    packets.Connack(True, 0, {props.ASSIGNED_CLIENT_ID: b"x", props.SERVER_KEEP_ALIVE: 5}),
    packets.Connack(False, 0x87),
    packets.Publish(b"a/b", b"payload", 1, True, True, 7, MESSAGE, 3, (1, 300)),
    packets.Publish(b"", b"", 0, False, False, 0, None, 3),
    packets.Publish(b"a", b"", 2, False, False, 65_535),
    packets.Puback(7),
    packets.Puback(7, 0x10),
    packets.Puback(7, 0, {props.REASON_STRING: b"why"}),
    packets.Pubrec(8, 0x97, {props.USER: USER}),
    packets.Pubrel(9, 0x92),
    packets.Pubcomp(9, 0x92, {props.REASON_STRING: b"gone"}),
    packets.Subscribe(3, [("a/#", 0x2D), ("b", 0)], {props.SUBSCRIPTION_ID: 268_435_455, props.USER: USER}),
    packets.Suback(3, [0, 2, 0x8F], {props.REASON_STRING: b"no"}),
    packets.Unsubscribe(4, ["a/#"], {props.USER: USER}),
    packets.Unsuback(4, [0, 0x11], {props.USER: USER}),
    packets.Disconnect(0x04, {props.SESSION_EXPIRY: 1}),
    packets.Disconnect(),
    packets.Auth(0x18, {props.AUTH_METHOD: b"m", props.AUTH_DATA: b"d"}),
    packets.Pingreq(),
    packets.Pingresp(),
]

TEXT = st.text(st.characters(exclude_characters="\x00", exclude_categories=("Cs",)), max_size=8).map(str.encode)
MESSAGES = st.builds(
    MessageProperties,
    st.sampled_from([None, 0, 1]),
    st.none() | st.integers(0, 0xFFFF_FFFF),
    st.none() | TEXT,
    st.sampled_from([None, b"a", b"a/b"]),
    st.none() | st.binary(max_size=8),
    st.lists(st.tuples(TEXT, TEXT), max_size=3),
)
PUBLISHES = st.integers(0, 2).flatmap(
    lambda qos: st.builds(
        packets.Publish,
        st.sampled_from([b"a", b"b/c", b"t\xc3\xa4"]),
        st.binary(max_size=20),
        st.just(qos),
        st.booleans(),
        st.just(False),
        st.integers(1, 9) if qos else st.just(0),
        st.none() | MESSAGES.filter(lambda message: message != MessageProperties()),
        st.integers(0, 3),
    )
)
