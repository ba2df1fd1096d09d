"""Enhanced authentication over the wire: at CONNECT, again later, and each way in which it ends."""

from __future__ import annotations

from typing import Any

import pytest

from mqtt_proxy.access.auth import Exchanges
from mqtt_proxy.access.scram import MECHANISM, derive
from mqtt_proxy.metrics import AccessCounters
from mqtt_proxy.mqtt.codec import packets
from mqtt_proxy.mqtt.codec import properties as props
from mqtt_proxy.mqtt.codec.reason_codes import ReasonCode
from runtime.metrics import Registry
from tests.support.scram_client import ScramClient
from tests.unit.mqtt_proxy.rig import Rig, Wire, publish, running, settle

USERS = {"ann": str(derive("right", b"salt", 4_096)), "bob": str(derive("right", b"salt", 4_096))}


def offer(rig: Rig) -> None:
    """The proxy has a password file."""
    rig.access.exchanges = Exchanges(USERS.get, AccessCounters(Registry()))


def auth(data: bytes | None, reason: int = ReasonCode.CONTINUE_AUTHENTICATION, method: str = MECHANISM) -> packets.Auth:
    found: dict[int, Any] = {props.AUTH_METHOD: method.encode()}
    return packets.Auth(reason, found if data is None else found | {props.AUTH_DATA: data})


async def connect(rig: Rig, client: ScramClient, **more: Any) -> Wire:
    """A client that has sent a CONNECT with its first message."""
    first = {props.AUTH_METHOD: MECHANISM.encode(), props.AUTH_DATA: client.first()}
    return await rig.client("c", level=5, properties=first, **more)


async def answered(wire: Wire, client: ScramClient) -> Any:
    """The proxy's answer to the client's proof."""
    (challenge,) = wire.received()
    assert challenge.reason == ReasonCode.CONTINUE_AUTHENTICATION
    wire.send(auth(client.final(challenge.properties[props.AUTH_DATA])))
    await settle()
    received = wire.received()
    return received[0] if received else None


async def test_both_sides_prove_themselves() -> None:
    """[MQTT-4.12.0-5] The CONNACK carries the server's proof, and the session belongs to the user."""
    async with running() as rig:
        offer(rig)
        client = ScramClient("ann", "right")
        wire = await connect(rig, client, clean=False)
        connack = await answered(wire, client)
        assert connack.code == ReasonCode.SUCCESS
        assert client.believes(connack.properties[props.AUTH_DATA])
        assert connack.properties[props.AUTH_METHOD] == MECHANISM.encode()
        wire.send(publish("t", b"x"))
        await settle()
        assert isinstance(wire.received()[0], packets.Puback)


async def test_a_wrong_password_and_a_wrong_method() -> None:
    """[MQTT-4.12.0-1] [MQTT-4.12.0-4] 0x87 and 0x8C; no session is opened."""
    async with running() as rig:
        wire = await connect(rig, ScramClient("ann", "right"))
        assert wire.received()[0].code == ReasonCode.BAD_AUTHENTICATION_METHOD
        offer(rig)
        client = ScramClient("ann", "wrong")
        connack = await answered(await connect(rig, client), client)
        assert connack.code == ReasonCode.NOT_AUTHORIZED
        none = await rig.client("c", level=5, properties={props.AUTH_METHOD: MECHANISM.encode()})
        assert none.received()[0].code == ReasonCode.NOT_AUTHORIZED
        assert rig.broker.sessions == {}
        assert rig.count("connects_refused_total{authentication}") == 2


async def test_a_client_that_leaves_in_between() -> None:
    """Nothing waits for it."""
    async with running() as rig:
        offer(rig)
        wire = await connect(rig, ScramClient("ann", "right"))
        wire.lose()
        await settle()
        assert not rig.services.tasks
        assert rig.broker.sessions == {}


async def again(rig: Rig, client: ScramClient) -> tuple[Wire, list[Any]]:
    """A connected client of ann that authenticates again as `client`; returns the answer."""
    offer(rig)
    first = ScramClient("ann", "right")
    wire = await connect(rig, first)
    await answered(wire, first)
    wire.send(auth(client.first(), ReasonCode.RE_AUTHENTICATE))
    told = wire.received()
    if told and isinstance(told[0], packets.Auth):
        wire.send(auth(client.final(told[0].properties[props.AUTH_DATA])))
        told = wire.received()
    await settle()
    return wire, told


async def test_authenticating_again() -> None:
    """AUTH with success, and the connection continues."""
    async with running() as rig:
        client = ScramClient("ann", "right", nonce="def")
        wire, told = await again(rig, client)
        assert told[0].reason == ReasonCode.SUCCESS
        assert client.believes(told[0].properties[props.AUTH_DATA])
        wire.send(publish("t", b"x"))
        await settle()
        assert isinstance(wire.received()[0], packets.Puback)


@pytest.mark.parametrize("client", [ScramClient("ann", "wrong"), ScramClient("bob", "right"), ScramClient("", "right")])
async def test_failing_to_authenticate_again(client: ScramClient) -> None:
    """[MQTT-4.12.1-2] Or authenticating as another user: DISCONNECT."""
    async with running() as rig:
        wire, told = await again(rig, client)
        assert (type(told[0]), told[0].reason) == (packets.Disconnect, ReasonCode.NOT_AUTHORIZED)
        assert wire.session.state.close_reason is not None


async def test_a_method_that_is_no_longer_offered() -> None:
    """The password file was removed."""
    async with running() as rig:
        offer(rig)
        client = ScramClient("ann", "right")
        wire = await connect(rig, client)
        await answered(wire, client)
        rig.access.exchanges = Exchanges(None, AccessCounters(Registry()))
        wire.send(auth(client.first(), ReasonCode.RE_AUTHENTICATE))
        assert wire.received()[0].reason == ReasonCode.NOT_AUTHORIZED
