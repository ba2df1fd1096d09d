"""Which twin serves plain sockets."""

from __future__ import annotations

from mqtt_proxy.listening import native_sockets


def test_without_a_driver_descriptors_are_not_accepted() -> None:
    """Both or neither: a bare descriptor needs a driver."""
    core = native_sockets.pure_core()
    assert (core.name, core.driver, core.accept) == ("pure", None, None)
    assert (native_sockets.core.driver is None) == (native_sockets.core.accept is None)
    assert native_sockets.choice.name == native_sockets.core.name
