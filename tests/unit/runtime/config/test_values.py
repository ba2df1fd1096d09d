from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.config.values import BadValueError, check_rule, from_text, from_toml, rule_text, type_name

LIST = tuple[str, ...]


@pytest.mark.parametrize(
    ("declared", "raw", "value"),
    [
        (int, 5, 5),
        (float, 5, 5.0),
        (bool, True, True),
        (str, "x", "x"),
        (Path | None, "/srv/x", Path("/srv/x")),
        (LIST, ["a", "b"], ("a", "b")),
    ],
)
def test_toml_values_of_the_right_type_are_taken(declared: object, raw: object, value: object) -> None:
    taken = from_toml(declared, raw)
    assert taken == value
    assert type(taken) is type(value)


@pytest.mark.parametrize(
    ("declared", "raw"),
    [(int, "5"), (int, True), (int, 1.5), (float, "1"), (bool, 1), (str, 1), (Path, ""), (LIST, "a"), (LIST, [1])],
)
def test_toml_values_of_another_type_are_refused(declared: object, raw: object) -> None:
    with pytest.raises(BadValueError, match="must be"):
        from_toml(declared, raw)


@pytest.mark.parametrize(
    ("declared", "text", "value"),
    [
        (int, " 1_000 ", 1000),
        (float, "1.5", 1.5),
        (bool, "Yes", True),
        (bool, "off", False),
        (str, " x ", " x "),
        (Path, "~", Path("~").expanduser()),
        (Path | None, "", None),
        (LIST, "a, b,", ("a", "b")),
    ],
)
def test_text_is_parsed(declared: object, text: str, value: object) -> None:
    assert from_text(declared, text) == value


@pytest.mark.parametrize(("declared", "text"), [(int, "x"), (float, "x"), (float, "nan"), (bool, "maybe"), (Path, " ")])
def test_text_that_does_not_fit_is_refused(declared: object, text: str) -> None:
    with pytest.raises(BadValueError, match="must be"):
        from_text(declared, text)


@given(st.integers())
def test_every_whole_number_survives_text(number: int) -> None:
    assert from_text(int, str(number)) == number


@pytest.mark.parametrize(
    ("rule", "good", "bad", "text"),
    [
        ({"minimum": 1}, 1, 0, "at least 1"),
        ({"maximum": 9}, 9, 10, "at most 9"),
        ({"minimum": 1, "maximum": 9}, 5, 10, "1 to 9"),
        ({"choices": ("a", "b")}, "a", "c", "one of a, b"),
    ],
)
def test_rules(rule: dict[str, Any], good: Any, bad: Any, text: str) -> None:
    check_rule(rule, good)
    check_rule(rule, None)
    with pytest.raises(BadValueError, match="must be"):
        check_rule(rule, bad)
    assert rule_text(rule) == text


def test_names_of_types_for_the_page() -> None:
    assert rule_text({}) == ""
    assert [type_name(kind) for kind in (int, Path | None, LIST, str)] == [
        "int",
        "path, optional",
        "list of strings",
        "string",
    ]
