"""Fields as real clients write them."""

from __future__ import annotations

import pytest

from broker.requests.fields import flag, number, text
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode


def test_lenient_and_exact() -> None:
    fields = {"n": "-3", "empty": "", "t": "true", "one": "1", "zero": "0", "bad": "x"}
    assert text(fields, "n") == "-3"
    assert number(fields, "n") == -3
    assert number(fields, "empty", 7) == number(fields, "none", 7) == 7
    assert flag(fields, "t")
    assert flag(fields, "one")
    assert not flag(fields, "zero")
    assert flag(fields, "none", default=True)
    for call in (lambda: text(fields, "none"), lambda: number(fields, "none"), lambda: number(fields, "bad", 1)):
        with pytest.raises(Refused) as refused:
            call()
        assert refused.value.code == ResponseCode.INVALID_PARAMETER
