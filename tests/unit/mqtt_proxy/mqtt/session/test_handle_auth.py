"""AUTH before and after acceptance."""

from __future__ import annotations

import pytest

from mqtt_proxy.mqtt.codec import packets
from mqtt_proxy.mqtt.codec import properties as props
from mqtt_proxy.mqtt.codec.encode import encode
from mqtt_proxy.mqtt.session.events import AuthReceived, ConnectRequested, PublishBatch, Violated
from mqtt_proxy.mqtt.session.session import Session
from mqtt_proxy.mqtt.session.session_state import Status
from remoting.protocol.errors import LocalMisuse
from tests.unit.mqtt_proxy.mqtt.sessions import answers5, connected5, deciding5, send5

METHOD = {props.AUTH_METHOD: b"M"}
STEP = packets.Auth(0x18, METHOD | {props.AUTH_DATA: b"two"})


def test_a_challenge_before_acceptance() -> None:
    """[MQTT-4.12.0-2] [MQTT-4.12.0-5] Only AUTH may come, what follows it waits; every answer names the method."""
    session = deciding5(METHOD | {props.AUTH_DATA: b"one"})
    session.answers.challenge(b"now")
    assert session.state.status is Status.AUTHENTICATING
    assert answers5(session) == [packets.Auth(0x18, METHOD | {props.AUTH_DATA: b"now"})]
    publish = packets.Publish(b"a", b"", 0, False, False, 0)
    assert send5(session, STEP, publish) == [AuthReceived(0x18, "M", b"two")]
    session.answers.accept(False, auth_data=b"fine")
    (said,) = answers5(session)
    assert said.properties[props.AUTH_METHOD] == b"M"  # type: ignore[union-attr, index]
    assert said.properties[props.AUTH_DATA] == b"fine"  # type: ignore[union-attr, index]
    assert session.feed(b"", 0) == [PublishBatch([publish])]


def test_reauthentication() -> None:
    """Begun by the client, while everything else continues."""
    session = connected5(METHOD)
    assert send5(session, packets.Auth(0x19, METHOD)) == [AuthReceived(0x19, "M", None)]
    session.answers.challenge(None)
    assert send5(session, STEP)[0].data == b"two"
    session.answers.reauthenticated(b"ok")
    assert answers5(session) == [packets.Auth(0x18, METHOD), packets.Auth(0, METHOD | {props.AUTH_DATA: b"ok"})]


@pytest.mark.parametrize(
    ("session", "sent"),
    [
        (connected5(), packets.Auth(0x19, METHOD)),
        (connected5(METHOD), packets.Auth(0x19, {props.AUTH_METHOD: b"N"})),
        (connected5(METHOD), packets.Auth(0x19)),
        (connected5(METHOD), STEP),
        (connected5(METHOD), packets.Auth(0x00, METHOD)),
    ],
)
def test_invalid_auth_packets(session: Session, sent: packets.Auth) -> None:
    """[MQTT-4.12.0-3] [MQTT-4.12.1-1] Without a method, with another one, or without a challenge."""
    assert [event.reason for event in send5(session, sent)] == ["protocol_error"]


def test_other_packets_while_challenged() -> None:
    """[MQTT-3.1.2-30] 0x82 in CONNACK; the client may also leave. The will is published in neither case."""
    for sent, kind in ((packets.Pingreq(), packets.Connack), (packets.Disconnect(), None)):
        session = deciding5(METHOD)
        session.answers.challenge(None)
        session.take_bytes()
        events = send5(session, sent)
        assert isinstance(events[0], Violated) == (kind is not None)
        assert [type(one) for one in answers5(session)] == [kind] * (kind is not None)
        assert not session.state.will_due


def test_a_client_without_a_method_is_not_challenged() -> None:
    """[MQTT-4.12.0-6]"""
    session = deciding5()
    with pytest.raises(LocalMisuse):
        session.answers.challenge(None)
    event = Session(session.state.limits, assigned_client_id=str).feed(
        encode(packets.Connect("dev", True, 0, level=5, properties=METHOD)), 0
    )[0]
    assert isinstance(event, ConnectRequested)
    assert event.auth_method == "M"
