"""What an owner has to note of QoS 2 deliveries."""

from __future__ import annotations

from mqtt_proxy.mqtt.session.qos2_steps import Qos2Steps


def test_everything_is_handed_out_once() -> None:
    steps = Qos2Steps()
    steps.park(1, "a", (b"x", b"y"))
    steps.park(2, "b", (b"z",))
    steps.finished.append(7)
    assert steps.take_reserved() == [(1, "a"), (2, "b")]
    assert steps.take_finished() == [7]
    assert (steps.take_reserved(), steps.take_finished()) == ([], [])
    assert steps.unpark([2, 3]) == [(2, (b"z",))]
    assert steps.unpark([1, 2]) == [(1, (b"x", b"y"))]
