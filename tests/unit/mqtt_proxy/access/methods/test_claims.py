"""What comes along with a name is used as a whole or not at all."""

from __future__ import annotations

import pytest

from mqtt_proxy.access.methods.claims import GROUPS_MAX, RULES_MAX, ClaimError, is_name, rules_of, texts
from remoting.access.acl_file import AclError


def test_rules() -> None:
    """As behind `pattern`; nothing at all is no rules."""
    first, second = rules_of(["readwrite a/%c", "deny b"], "token")
    assert (first.filter, first.pattern, first.place) == (b"a/%c", True, "token:1")
    assert not second.allow
    assert rules_of(None, "token") == ()


@pytest.mark.parametrize("value", [[], "read a", [1], [None], {"a": 1}, ["a"] * (RULES_MAX + 1)])
def test_rules_that_are_none(value: object) -> None:
    """Never taken for an absence of rules."""
    with pytest.raises(ClaimError):
        rules_of(value, "token")


def test_one_garbled_rule_spoils_all() -> None:
    """It is named."""
    with pytest.raises(AclError, match="rule 2: "):
        rules_of(["a", "deney b/c"], "token")


def test_names() -> None:
    """Printable text of a bounded size."""
    assert texts(["a", "b c"]) == ("a", "b c")
    assert not is_name("")
    assert not is_name("a\0")
    assert not is_name("ä" * 129)
    assert is_name("ä" * 128)
    for value in ("a", [""], [1], ["a\n"], ["a"] * (GROUPS_MAX + 1), None):
        with pytest.raises(ClaimError):
            texts(value)
