"""Both twins offer the whole contract."""

from __future__ import annotations

from dataclasses import fields

from remoting.native import core as native
from remoting.native import packets
from remoting.native.contracts import FULL, NOTHING, SPECIAL, Core, Progress


def test_the_core_in_place_has_every_part() -> None:
    """Named, callable, nothing left out."""
    assert native.core.name == native.choice.name
    for part in fields(Core):
        assert part.name == "name" or callable(getattr(native.core, part.name)), part.name


def test_progress_starts_without_a_reason() -> None:
    """An empty reason means: came to the end."""
    assert Progress(0, 0, 0, 0, 0, group_open=False).reason == ""


def test_the_choice_names_the_twin() -> None:
    assert packets.core.name == packets.choice.name
    assert packets.pure_core().name == "pure"
    assert bool(packets.choice.reason) == (packets.choice.name == "pure")


def test_reasons_differ() -> None:
    assert len({NOTHING, FULL, SPECIAL}) == 3
