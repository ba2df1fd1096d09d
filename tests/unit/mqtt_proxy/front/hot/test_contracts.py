"""Which twin serves plain sockets."""

from __future__ import annotations

from mqtt_proxy.front import hot


def test_without_a_driver_nothing_is_accepted_by_hand() -> None:
    """Both or none: a bare descriptor needs a driver."""
    core = hot.pure_core()
    assert (core.name, core.driver, core.accept) == ("pure", None, None)
    assert (hot.core.driver is None) == (hot.core.accept is None)
    assert hot.choice.name == hot.core.name
