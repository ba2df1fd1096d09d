"""How a publisher asks for a later delivery, in both forms, and how it is answered."""

from __future__ import annotations

import pytest

from mqtt_proxy.mqtt.codec import packets
from mqtt_proxy.mqtt.codec.limits import DelayLimit
from mqtt_proxy.mqtt.codec.properties import REASON_STRING
from mqtt_proxy.mqtt.session.events import PublishBatch, PublishRefused, Violated
from remoting.protocol.records.properties import MessageProperties
from tests.unit.mqtt_proxy.mqtt.session.test_handlers import send
from tests.unit.mqtt_proxy.mqtt.sessions import answers5, connected, connected5, send5


def asked(*user: tuple[bytes, bytes], content_type: bytes | None = None) -> MessageProperties:
    return MessageProperties(content_type=content_type, user=list(user))


def test_the_topic_form_equals_the_property_at_the_real_topic() -> None:
    """Also in 3.1.1, and when the same topic comes again."""
    session = connected()
    sent = packets.Publish(b"$delayed/5/a/b", b"x", 1, True, False, 3)
    (batch,) = send(session, sent)
    wanted = packets.Publish(b"a/b", b"x", 1, True, False, 3, asked((b"delay-ms", b"5000")))
    assert batch == PublishBatch([wanted])
    again = packets.Publish(b"$delayed/0/a/b", b"x", 0, False, False, 0)
    assert send(session, again)[0].publishes[0].properties == asked((b"delay-ms", b"0"))  # type: ignore[attr-defined]


def test_other_properties_stay_and_the_topic_form_takes_precedence() -> None:
    """A property of the same name is replaced."""
    session = connected5()
    said = asked((b"k", b"v"), (b"delay-ms", b"1"), (b"k", b"w"), content_type=b"text")
    (batch,) = send5(session, packets.Publish(b"$delayed/2/t", b"x", 0, False, False, 0, said))
    (got,) = batch.publishes
    assert got.topic == b"t"
    assert got.properties == asked((b"k", b"v"), (b"k", b"w"), (b"delay-ms", b"2000"), content_type=b"text")


def test_an_alias_of_a_delayed_topic_is_delayed_every_time() -> None:
    """The alias stands for the whole name."""
    session = connected5()
    (first,) = send5(session, packets.Publish(b"$delayed/2/t", b"x", 0, False, False, 0, None, 4))
    (second,) = send5(session, packets.Publish(b"", b"y", 0, False, False, 0, None, 4))
    assert [batch.publishes[0].topic for batch in (first, second)] == [b"t", b"t"]
    assert second.publishes[0].properties == asked((b"delay-ms", b"2000"))


@pytest.mark.parametrize(
    "topic",
    [
        b"$delayed/5",
        b"$delayed/5/",
        b"$delayed//t",
        b"$delayed/x/t",
        b"$delayed/-1/t",
        b"$delayed/9999999999999/t",
    ],
)
def test_a_malformed_delay_is_an_invalid_topic(topic: bytes) -> None:
    """The message is not delivered at once instead."""
    session = connected()
    (event,) = send(session, packets.Publish(topic, b"x", 1, False, False, 3))
    assert isinstance(event, Violated)
    assert event.reason == "topic_name_refused"


@pytest.mark.parametrize(
    ("user", "code"),
    [
        ([(b"delay-ms", b"10001")], 0x97),
        ([(b"delay-ms", b"soon")], 0x83),
        ([(b"delay-ms", b"1"), (b"delay-ms", b"2")], 0x83),
    ],
)
def test_a_delay_that_is_not_granted_is_refused_in_the_acknowledgement(
    user: list[tuple[bytes, bytes]], code: int
) -> None:
    """The other messages of the read are accepted, and the answers are in the order of the messages."""
    session = connected5(delay=DelayLimit(10))
    first = packets.Publish(b"t", b"1", 1, False, False, 1)
    wrong = packets.Publish(b"t", b"2", 1, False, False, 2, asked(*user))
    last = packets.Publish(b"t", b"3", 1, False, False, 3, asked((b"delay-ms", b"10000")))
    events = send5(session, first, wrong, last)
    assert [type(event) for event in events] == [PublishBatch, PublishRefused, PublishBatch]
    assert (events[1].publish.payload, events[1].reason) == (b"2", "delay")
    assert answers5(session) == []
    session.answers.acknowledge([1, 3])
    got = answers5(session)
    assert [(one.packet_id, one.reason) for one in got] == [(1, 0), (2, code), (3, 0)]  # type: ignore[union-attr]
    assert REASON_STRING in (got[1].properties or {})  # type: ignore[union-attr]


def test_a_refused_qos_2_message_frees_its_id() -> None:
    """PUBREC with the code ends the exchange."""
    session = connected5(delay=DelayLimit(10))
    wrong = packets.Publish(b"t", b"2", 2, False, False, 2, asked((b"delay-ms", b"99999999")))
    send5(session, wrong)
    (answer,) = answers5(session)
    assert isinstance(answer, packets.Pubrec)
    assert answer.reason == 0x97
    assert session.answers.received_ids() == []
    assert session.state.incoming.in_use == 0


def test_where_no_answer_has_a_code_the_connection_ends() -> None:
    """QoS 0, and all of 3.1.1."""
    session = connected5(delay=DelayLimit(10))
    (event,) = send5(session, packets.Publish(b"$delayed/11/t", b"x", 0, False, False, 0))
    assert isinstance(event, Violated)
    assert event.reason == "delay"
    old = connected(delay=DelayLimit(10))
    (event,) = send(old, packets.Publish(b"$delayed/11/t", b"x", 1, False, False, 1))
    assert isinstance(event, Violated)
    assert "at most 10 s" in event.detail
