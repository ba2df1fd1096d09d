"""Code tables: complete, unambiguous, with a name for what is unknown."""

from __future__ import annotations

import pytest

from remoting.protocol.frames import codes
from remoting.protocol.frames.codes import RequestCode, ResponseCode


@pytest.mark.parametrize(("constants", "names"), [(RequestCode, codes.NAMES), (ResponseCode, codes.RESPONSE_NAMES)])
def test_every_constant_has_its_own_number(constants, names):
    numbers = [value for name, value in vars(constants).items() if name.isupper()]
    assert len(numbers) == len(set(numbers)) == len(names)


def test_names():
    assert codes.request_name(RequestCode.APPEND_MANY) == "APPEND_MANY"
    assert codes.request_name(7777) == "CODE_7777"
    assert codes.response_name(ResponseCode.SUCCESS) == "SUCCESS"
    assert codes.response_name(7777) == "CODE_7777"
    assert RequestCode.POP_MESSAGE == 200_050
