"""A code without a declared right cannot be served."""

from __future__ import annotations

import pytest

from remoting.access.rights import RIGHTS, with_rights
from remoting.protocol.errors import LightMQError
from remoting.protocol.frames.codes import RequestCode


def test_a_table_with_rights_is_served() -> None:
    assert with_rights({RequestCode.REGISTER_BROKER: "handler"}) == {103: "handler"}
    assert RIGHTS[103].action == "register"


def test_a_code_without_a_right_is_not() -> None:
    with pytest.raises(LightMQError, match="CODE_4711"):
        with_rights({103: "handler", 4711: "other"})
