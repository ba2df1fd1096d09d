"""Tags and expressions as one question to a record."""

from __future__ import annotations

import pytest

from broker.reading.selection import SQL92, TAG, selection
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode


class View:
    """As much of a record as is asked for."""

    def __init__(self, tags: bytes = b"", keys: bytes = b"", **properties: str) -> None:
        self.tags, self.keys = tags, keys
        self._properties = properties

    def properties(self):
        return [(name.encode(), value.encode()) for name, value in self._properties.items()]


@pytest.mark.parametrize("text", ["*", "", " ", "a || *", "||"])
def test_all(text):
    assert selection(text, TAG) is None


def test_tags():
    wanted = selection(" a || b ", TAG)
    assert [wanted(View(tags)) for tags in (b"a", b"b", b"c", b"")] == [True, True, False, False]


@pytest.mark.parametrize(
    ("text", "view", "expected"),
    [
        ("speed > 9", View(speed="10"), True),
        ("speed > 9", View(speed="9"), False),
        ("speed > 9", View(), False),
        ("NOT (speed > 9)", View(), False),
        ("TAGS = 'a' AND KEYS = 'k'", View(b"a", b"k"), True),
        ("line IN ('a', 'b')", View(line="b"), True),
    ],
)
def test_expressions(text, view, expected):
    """What is unknown is not true, so it is not wanted."""
    assert selection(text, SQL92)(view) is expected


@pytest.mark.parametrize(
    ("text", "kind", "code"),
    [("speed >", SQL92, ResponseCode.SUBSCRIPTION_PARSE_FAILED), ("a", "CLASS", ResponseCode.SYSTEM_ERROR)],
)
def test_refusals(text, kind, code):
    with pytest.raises(Refused) as refused:
        selection(text, kind)
    assert refused.value.code == code
