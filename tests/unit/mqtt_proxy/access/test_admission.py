"""Who is admitted to a session, and how the others are refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mqtt_proxy.access.admission import ConnectRefusal, Dialog, admit, join, leave, shown_by
from mqtt_proxy.config import QuotaConfig
from mqtt_proxy.listening.peer import RemoteAddress
from mqtt_proxy.mqtt.codec.packets import Will
from mqtt_proxy.mqtt.codec.reason_codes import ReasonCode
from mqtt_proxy.mqtt.session.events import ConnectRequested
from mqtt_proxy.quotas import Quotas
from remoting.access.rules import ANONYMOUS, Identity
from remoting.protocol.records.properties import MessageProperties
from tests.unit.mqtt_proxy.rig import FakeAccess


class Caller:
    """A connection from this machine."""

    peer = RemoteAddress("127.0.0.1", True)

    def peer_left(self) -> bool:
        return False


def dialog() -> Dialog:
    """A client that is never challenged."""
    return Dialog(None, FakeAccess())  # type: ignore[arg-type]


def connect(username: str | None, will: Will | None = None) -> ConnectRequested:
    """A CONNECT."""
    return ConnectRequested("c", True, 0, username, b"", will, 4, False)


@pytest.mark.parametrize(
    ("username", "result"),
    [
        (None, ANONYMOUS),
        ("ann", Identity("ann", anonymous=False)),
        ("denied", ConnectRefusal(ReasonCode.BAD_USER_NAME_OR_PASSWORD, "authentication")),
        ("busy", ConnectRefusal(ReasonCode.SERVER_BUSY, "busy")),
        ("left", ConnectRefusal(ReasonCode.SERVER_BUSY, "left")),
    ],
)
async def test_admitted_or_refused_with_a_reason(username: str | None, result: object) -> None:
    """A busy password check is answered without a word about the password."""
    assert await admit(FakeAccess(), connect(username), Caller(), lambda: True, dialog()) == result


@pytest.mark.parametrize(
    ("part", "least"),
    [
        ({}, 1),
        ({"username": "u" * 900}, 900),
        ({"password": b"p" * 900}, 900),
        ({"client_id": "c" * 900}, 900),
        ({"auth_data": b"d" * 900}, 900),
        ({"user": [(b"k", b"v" * 900)]}, 900),
        ({"user": [(b"", b"")] * 9}, 900),
        ({"will": Will(b"t" * 900, b"", 0, False)}, 900),
        ({"will": Will(b"t", b"p" * 900, 0, False)}, 900),
        ({"will": Will(b"t", b"", 0, False, MessageProperties(correlation_data=b"c" * 900))}, 900),
        ({"will": Will(b"t", b"", 0, False, MessageProperties(user=[(b"k" * 900, b"")]))}, 900),
    ],
)
def test_all_that_a_client_has_sent_counts_while_it_waits(part: dict[str, Any], least: int) -> None:
    """Whatever is left out fills the memory of a proxy whose checks are behind."""
    event = msgspec.structs.replace(connect(None), **part)
    assert least <= shown_by(event, Caller(), lambda: True).size_bytes < least + 300


async def test_a_will_must_be_allowed() -> None:
    """It is checked before the session exists."""
    access = FakeAccess()
    access.forbidden.add(b"w")
    refused = await admit(access, connect(None, Will(b"w", b"", 0, False)), Caller(), lambda: True, dialog())
    assert refused == ConnectRefusal(ReasonCode.NOT_AUTHORIZED, "will_topic")
    assert await admit(access, connect(None, Will(b"v", b"", 0, False)), Caller(), lambda: True, dialog()) is ANONYMOUS


async def test_a_bridge_and_its_will() -> None:
    """The identity marks a bridge; its will may announce the end of its connection and nothing else."""
    topic = b"$SYS/broker/connection/c/state"
    event = connect("ann", Will(topic, b"0", 1, True))
    event.bridge = True
    admitted = await admit(FakeAccess(), event, Caller(), lambda: True, dialog())
    assert admitted == Identity("ann", anonymous=False, bridge=True)
    event.will = Will(topic, b"gone", 1, True)
    refused = await admit(FakeAccess(), event, Caller(), lambda: True, dialog())
    assert refused == ConnectRefusal(ReasonCode.NOT_AUTHORIZED, "will_topic")


async def test_an_address_that_connects_too_fast_costs_no_password_check() -> None:
    """It is refused before any method is called."""
    caller = Caller()
    caller.peer = RemoteAddress("127.0.0.1", True, over_connect_rate=True)
    refused = await admit(FakeAccess(), connect("denied"), caller, lambda: True, dialog())
    assert refused == ConnectRefusal(ReasonCode.CONNECTION_RATE_EXCEEDED, "connect_rate")


def named(client_id: str, will: Will | None = None) -> ConnectRequested:
    """A CONNECT with this client id."""
    event = connect("ann", will)
    event.client_id = client_id
    return event


def test_the_clients_of_a_user_are_limited_and_anonymous_ones_are_not() -> None:
    """A refused client does not count; one that disconnects makes room."""
    quotas = Quotas(QuotaConfig(connections_per_user_max=1))
    ann = Identity("ann", anonymous=False)
    claimed = Identity("ann", anonymous=True)
    denied = ConnectRefusal(ReasonCode.NOT_AUTHORIZED, "authentication")
    assert join(quotas, denied, named("a")) is denied
    assert join(quotas, ann, named("a")) is ann
    assert join(quotas, ann, named("b")) == ConnectRefusal(ReasonCode.QUOTA_EXCEEDED, "connections_per_user_max")
    assert join(quotas, claimed, named("b")) is claimed
    leave(quotas, claimed, "b")
    leave(quotas, ann, "a")
    assert join(quotas, ann, named("b")) is ann


def test_a_will_may_be_too_large_to_be_retained() -> None:
    """Refused at CONNECT, while the client can still get a reason; it does not count as one of the user's clients."""
    quotas = Quotas(QuotaConfig(retained_payload_bytes_max=3, connections_per_user_max=1))
    ann = Identity("ann", anonymous=False)
    refused = ConnectRefusal(ReasonCode.QUOTA_EXCEEDED, "retained_payload")
    assert join(quotas, ann, named("a", Will(b"w", b"1234", 1, True))) == refused
    assert join(quotas, ann, named("b", Will(b"w", b"1234", 1, False))) is ann
    leave(quotas, ann, "b")
    assert join(quotas, ann, named("c", Will(b"w", b"123", 1, True))) is ann


async def test_no_extended_authentication_is_known() -> None:
    """A client that requests it is refused, with the method as the reason."""
    asked = connect(None)
    asked.auth_method = "SCRAM-SHA-1"
    refused = await admit(FakeAccess(), asked, Caller(), lambda: True, dialog())
    assert refused == ConnectRefusal(ReasonCode.BAD_AUTHENTICATION_METHOD, "auth_method")
