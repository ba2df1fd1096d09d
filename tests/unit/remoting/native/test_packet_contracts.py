"""The door: one core in use, known by its name, the pure one always to be had."""

from __future__ import annotations

from remoting.native import packets
from remoting.native.packet_contracts import FULL, NOTHING, SPECIAL


def test_the_choice_names_the_twin() -> None:
    assert packets.core.name == packets.choice.name
    assert packets.pure_core().name == "pure"
    assert bool(packets.choice.reason) == (packets.choice.name == "pure")


def test_reasons_differ() -> None:
    assert len({NOTHING, FULL, SPECIAL}) == 3
