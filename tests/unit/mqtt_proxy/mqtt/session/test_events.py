"""The vocabulary of the session is complete."""

from __future__ import annotations

from typing import get_args

from mqtt_proxy.mqtt.session import events


def test_every_event_is_exported() -> None:
    """A handler can import every event that it may get."""
    names = {kind.__name__ for kind in get_args(events.Event)}
    assert names < set(events.__all__)
    assert not events.Disconnected().will_due
