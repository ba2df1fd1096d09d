"""A place that only remembers."""

from __future__ import annotations

from mqtt_proxy.mqtt.session.place import DeliveryOrigin


def test_a_place_names_its_queue_and_takes_acknowledgements() -> None:
    """Acknowledging moves nothing; a closing session notes what is unacknowledged from here."""
    place = DeliveryOrigin(7)
    place.acknowledge(3)
    assert (place.queue_id, place.noted, place.flow_bit) == (7, True, 0)
