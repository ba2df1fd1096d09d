"""What a client of MQTT 5 is told about the topics its answers should come to.

It asks with Request Response Information and gets the configured prefix, its client id and a slash: below that it makes
its response topics. Invariant: what is told can stand at the beginning of a topic name, and is no other client's.
Thread rule: pure function.
"""

from __future__ import annotations

from mqtt_proxy.mqtt.events import ConnectRequested

_NOT_IN_A_LEVEL = ("/", "+", "#")


def response_information(prefix: str, event: ConnectRequested) -> str | None:
    """The Response Information of a CONNACK; None when there is nothing to be told."""
    if not prefix or not event.request_response_information:
        return None
    if any(character in event.client_id for character in _NOT_IN_A_LEVEL):
        return None  # it would reach into the topics of others
    return f"{prefix}{event.client_id}/"
