"""Where a message has been: the marks by which it does not go round in a circle.

Two marks. `mqttBridge` is a property of our record: the connection by which the message came in; it never leaves by
that connection again. `lightmq-bridge` is an MQTT 5 user property (and as such a property of the record): one for each
installation that sent the message on, in order; an installation drops what carries its own name. With 3.1.1 there is no
such property: there a message that came by any bridge stays, unless the operator vouches for the absence of circles; so
does what a bridge brought here over 3.1.1, which its client id tells.
Invariant: what `why_not_out` lets pass over MQTT 5 carries our name afterwards. Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mqtt_bridge.config import CLIENT_ID_PREFIX, ConnectionConfig
from remoting.protocol.records.mqtt_properties import BRIDGE_KEY
from remoting.protocol.records.record import CLIENT_ID_KEY

Pairs = Sequence[tuple[bytes, bytes]]

CAME_BY_KEY = BRIDGE_KEY
"""Record property: name of the connection by which a message came in."""
TRAIL_KEY = b"lightmq-bridge"
"""User property: an installation that sent the message on."""

CAME_BY_IT = "came_by_it"
CAME_FROM_PEER = "came_from_peer"
WAS_HERE = "was_here"
CAME_BY_A_BRIDGE = "came_by_a_bridge"
REASONS = (CAME_BY_IT, CAME_FROM_PEER, WAS_HERE, CAME_BY_A_BRIDGE)


@dataclass(frozen=True, slots=True)
class Place:
    """Our end of one connection."""

    installation: bytes
    connection: bytes
    peer: bytes
    """Name of the installation at the other end, empty if it is not known or none of ours."""
    is_v5: bool
    forward_bridged: bool


def place_of(installation: str, config: ConnectionConfig) -> Place:
    """Our end of a connection as its marks need it."""
    return Place(
        installation.encode(), config.name.encode(), config.peer_name.encode(), config.is_v5, config.forward_bridged
    )


def trail(pairs: Pairs) -> list[bytes]:
    """Installations that sent a message on, in order."""
    return [value for key, value in pairs if key == TRAIL_KEY]


def why_not_out(place: Place, pairs: Pairs) -> str:
    """Why a record with these properties does not go to the peer; empty when it does."""
    came_by = client_id = b""
    for key, value in pairs:
        if key == CAME_BY_KEY:
            came_by = value
        elif key == CLIENT_ID_KEY:
            client_id = client_id or value
    been = trail(pairs)
    if came_by == place.connection:
        return CAME_BY_IT
    if place.installation in been:
        return WAS_HERE
    if place.peer and (place.peer in been or client_id.startswith(_clients_of(place.peer))):
        return CAME_FROM_PEER
    untold = not been and client_id.startswith(CLIENT_ID_PREFIX.encode()) and not came_by
    bridged = untold or (not place.is_v5 and (came_by or been))
    if bridged and not place.forward_bridged:
        return CAME_BY_A_BRIDGE
    return ""


def why_not_in(place: Place, user: Pairs) -> str:
    """Why a message with these user properties is not stored here; empty when it is."""
    return WAS_HERE if place.installation in trail(user) else ""


def outgoing_user(place: Place, user: Pairs) -> list[tuple[bytes, bytes]]:
    """The user properties to send: ours is the last name of the trail."""
    return [*user, (TRAIL_KEY, place.installation)]


def client_id(installation: str, config: ConnectionConfig, direction: str) -> str:
    """Our client id at the peer in one direction."""
    return f"{config.client_id or f'{CLIENT_ID_PREFIX}{installation}-{config.name}'}-{direction}"


def _clients_of(installation: bytes) -> bytes:
    return CLIENT_ID_PREFIX.encode() + installation + b"-"
