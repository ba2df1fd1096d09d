"""Tag expressions become tags."""

from __future__ import annotations

import pytest

from remoting.filtering import tags
from remoting.protocol.errors import LocalMisuse


def test_expressions() -> None:
    assert tags.parse(" * ") is None
    assert tags.parse("") is None
    assert tags.parse("a || b||a") == ("a", "b")


@pytest.mark.parametrize("wrong", ["a ||", "|| a", "a || *", "a||||b", "||".join(map(str, range(tags.TAGS_MAX + 1)))])
def test_wrong_expressions(wrong: str) -> None:
    with pytest.raises(LocalMisuse):
        tags.parse(wrong)
