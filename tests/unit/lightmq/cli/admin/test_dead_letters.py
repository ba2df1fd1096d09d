"""How dead letters are listed; against a running broker: tests/processes/test_operator_commands.py."""

from __future__ import annotations

import pytest

from lightmq.cli.admin import dead_letters
from lightmq.cli.outcome import CommandFailed


def test_a_letter_is_shown_with_its_place_also_when_it_cannot_be_read() -> None:
    where = {"broker": "broker-a", "group": "g", "queue": 0, "offset": 7}
    letter = where | {"topic": "orders", "tries": 3, "stored_ms": 0, "bytes": 5, "keys": "k"}
    shown = dead_letters._cells(letter)
    assert (*shown[:4], *shown[5:]) == ("g", "broker-a/0/7", "orders", "3", "5", "k")
    assert dead_letters._cells(where | {"topic": "", "damaged": True})[:3] == ("g", "broker-a/0/7", "damaged")


@pytest.mark.parametrize("place", ["", "broker-a", "broker-a/0", "broker-a/0/x", "broker-a/-1/0", "7"])
def test_what_is_no_place_is_refused_before_anybody_is_asked(place: str) -> None:
    with pytest.raises(CommandFailed, match="BROKER/QUEUE/OFFSET"):
        dead_letters.resend("g", place)
