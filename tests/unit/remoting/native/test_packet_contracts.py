"""The door: one core in use, known by its name, the pure one always to be had."""

from __future__ import annotations

from mqtt_proxy import hot
from remoting.native.packet_contracts import FULL, NOTHING, SPECIAL


def test_the_choice_names_the_twin() -> None:
    assert hot.core.name == hot.choice.name
    assert hot.pure_core().name == "pure"
    assert bool(hot.choice.reason) == (hot.choice.name == "pure")


def test_reasons_differ() -> None:
    assert len({NOTHING, FULL, SPECIAL}) == 3
