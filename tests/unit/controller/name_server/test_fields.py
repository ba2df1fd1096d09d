"""Fields of requests as values."""

from __future__ import annotations

import pytest

from controller.name_server.key_value_api import number, text, truth
from remoting.protocol.errors import Refused
from remoting.protocol.frames.commands import Command

COMMAND = Command(
    103, fields={"a": "x", "n": "-12", "yes": "TRUE", "one": "1", "no": "false", "empty": "", "u": "\u0661"}
)


def test_values():
    assert text(COMMAND, "a") == "x"
    assert number(COMMAND, "n") == -12
    assert number(COMMAND, "missing", 7) == number(COMMAND, "empty", 7) == 7
    assert [truth(COMMAND, name) for name in ("yes", "one", "no", "missing")] == [True, True, False, False]


@pytest.mark.parametrize(
    ("read", "name"), [(text, "missing"), (text, "empty"), (number, "missing"), (number, "a"), (number, "u")]
)
def test_refusals_name_the_field(read, name):
    with pytest.raises(Refused, match=name) as caught:
        read(COMMAND, name)
    assert caught.value.code == 29


def test_a_number_nobody_means():
    with pytest.raises(Refused):
        number(Command(1, fields={"n": "9" * 5_000}), "n")
