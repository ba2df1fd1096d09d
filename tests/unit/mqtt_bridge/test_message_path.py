"""Where a message has been, and what follows from it."""

from __future__ import annotations

from typing import Any

from mqtt_bridge.config import ConnectionConfig, RuleConfig
from mqtt_bridge.message import (
    CAME_BY_A_BRIDGE,
    CAME_BY_IT,
    CAME_BY_KEY,
    CAME_FROM_PEER,
    TRAIL_KEY,
    WAS_HERE,
    Place,
    client_id,
    outgoing_user,
    place_of,
    trail,
    why_not_in,
    why_not_out,
)


def place(**settings: Any) -> Place:
    return place_of("here", connection(**settings))


def connection(**settings: Any) -> ConnectionConfig:
    return ConnectionConfig(name="cloud", host="h", rules=(RuleConfig(filter="#"),), **settings)


def test_a_message_of_a_device_is_sent_with_its_origin() -> None:
    pairs = [(b"originMqttTopic", b"a"), (b"clientId", b"device"), (b"k", b"v")]
    for version in ("3.1.1", "5"):
        assert why_not_out(place(version=version), pairs) == ""
    sent = outgoing_user(place(), [(b"k", b"v"), (TRAIL_KEY, b"before")])
    assert sent == [(b"k", b"v"), (TRAIL_KEY, b"before"), (TRAIL_KEY, b"here")]
    assert trail(sent) == [b"before", b"here"]


def test_what_came_by_the_connection_is_not_sent_back() -> None:
    for version in ("3.1.1", "5"):
        assert why_not_out(place(version=version, forward_bridged=True), [(CAME_BY_KEY, b"cloud")]) == CAME_BY_IT


def test_what_came_by_another_is_forwarded_over_mqtt_5_alone() -> None:
    other = [(CAME_BY_KEY, b"other")]
    assert why_not_out(place(), other) == ""
    assert why_not_out(place(version="3.1.1"), other) == CAME_BY_A_BRIDGE
    assert why_not_out(place(version="3.1.1", forward_bridged=True), other) == ""


def test_what_another_installation_sent_is_known_by_trail_or_client_id() -> None:
    by_trail, by_client = [(TRAIL_KEY, b"there")], [(b"clientId", b"lightmq-bridge-there-x-out")]
    assert why_not_out(place(), by_trail) == ""
    assert why_not_out(place(), by_client) == CAME_BY_A_BRIDGE  # it cannot say where it has been before
    assert why_not_out(place(forward_bridged=True), by_client) == ""
    for pairs in (by_trail, by_client):
        assert why_not_out(place(peer_name="there"), pairs) == CAME_FROM_PEER
        assert why_not_out(place(peer_name="the", forward_bridged=True), pairs) == ""
        assert why_not_out(place(version="3.1.1"), pairs) == CAME_BY_A_BRIDGE


def test_what_was_here_is_neither_sent_nor_accepted_again() -> None:
    been = [(TRAIL_KEY, b"here"), (TRAIL_KEY, b"there")]
    assert why_not_out(place(), been) == WAS_HERE
    assert why_not_in(place(), been) == WAS_HERE
    assert why_not_in(place(), been[1:]) == ""


def test_client_ids_differ_by_direction() -> None:
    assert client_id("here", connection(), "out") == "lightmq-bridge-here-cloud-out"
    assert client_id("here", connection(client_id="mine"), "in") == "mine-in"
