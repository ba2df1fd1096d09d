"""SQL92 filters: their meaning, and the errors of invalid ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.filtering import expressions
from remoting.protocol.errors import LocalMisuse

MESSAGE = {"a": "5", "b": "north", "c": "2.5", "yes": "TRUE", "big": "12345678901234567890", "TAGS": "t"}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a = 5", True),
        ("a <> 5", False),
        ("a = 5.0 AND b = 'north'", True),
        ("a > 5 OR c >= 2.5", True),
        ("a < 10", True),  # numbers, not texts
        ("a <= -1", False),
        ("a BETWEEN 5 AND 6", True),
        ("a NOT BETWEEN 5 AND 6", False),
        ("b IN ('south', 'north')", True),
        ("b NOT IN ('south')", True),
        ("b > 3", False),  # no number
        ("NOT b > 3", True),
        ("b = 3", False),
        ("yes = TRUE AND yes", True),
        ("a", False),
        ("missing IS NULL AND a IS NOT NULL", True),
        ("missing = 1", None),
        ("missing <> 1", None),
        ("NOT missing = 1", None),
        ("missing = 1 OR a = 5", True),
        ("missing = 1 OR a = 6", None),
        ("missing = 1 AND a = 6", False),
        ("missing = 1 AND a = 5", None),
        ("missing IN ('x')", None),
        ("missing CONTAINS 'x'", None),
        ("b CONTAINS 'ort' and b startswith 'no' AND b ENDSWITH 'th'", True),
        ("b NOT CONTAINS 'ort'", False),
        ("(a = 1 OR a = 5) AND NOT (c = 1)", True),
        ("a = 1 OR a = 5 AND c = 1", False),
        ("big = 12345678901234567890", True),
        ("b = 'it''s'", False),
        ("TAGS = 't'", True),
        ("1 = 1", True),
        ("a = 5L", True),
        ("a > 4e0", True),
        ("a > +4 AND c > .5", True),
    ],
)
def test_meaning(text: str, found: bool | None) -> None:
    assert expressions.parse_sql92(text)(MESSAGE.get) is found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "instead of its end at character 1"),
        ("a >", "expected instead of its end"),
        ("a = 'open", "not understood"),
        ("a = 5x", "at character 4 is not understood"),
        ("a IN (1)", "single quotes expected instead of '1' at character 7"),
        ("a IN ('x'", r"'\)' expected"),
        ("a NOT 5", "IN, BETWEEN"),
        ("(a = 1", r"'\)' expected"),
        ("a = 1 b", "the end expected instead of 'b' at character 7"),
        ("a IS 5", "'NULL' expected"),
        ("a BETWEEN 1 OR 2", "'AND' expected"),
        ("AND a", "a property, a number or a text"),
        ("a; drop", "';' at character 2|'; drop' at character 2"),
        ("NOT " * 40 + "a", "more than 32"),
        ("(" * 40 + "a" + ")" * 40, "more than 32"),
        ("a" * 9_000, "the limit is 8192"),
    ],
)
def test_mistakes_are_reported(text: str, said: str) -> None:
    with pytest.raises(LocalMisuse, match=said):
        expressions.parse_sql92(text)


@given(st.text(alphabet="ab ()'=<>1.,-ANDORTI", max_size=30))
def test_any_text_is_an_expression_or_misuse(text: str) -> None:
    try:
        found = expressions.parse_sql92(text)
    except LocalMisuse:
        return
    assert found(MESSAGE.get) in (True, False, None)


_TERMS = st.sampled_from(["a = 5", "a > 9", "missing = 1"])
_VALUES = {"a = 5": True, "a > 9": False, "missing = 1": None}


@given(st.recursive(_TERMS, lambda inner: st.tuples(st.sampled_from(["AND", "OR", "NOT"]), inner, inner), max_leaves=8))
def test_three_truth_values(tree: object) -> None:
    text, value = _build(tree)
    assert expressions.parse_sql92(text)(MESSAGE.get) is value


def _build(tree: object) -> tuple[str, bool | None]:
    """The text of a tree, and its value by the truth tables of SQL."""
    if isinstance(tree, str):
        return tree, _VALUES[tree]
    assert isinstance(tree, tuple)
    word, (left, one), (right, other) = tree[0], _build(tree[1]), _build(tree[2])
    order = [False, None, True]
    if word == "NOT":
        return f"NOT ({left})", None if one is None else not one
    pick = min if word == "AND" else max
    return f"({left}) {word} ({right})", order[pick(order.index(one), order.index(other))]


@pytest.mark.parametrize(
    "text",
    [
        "n > 'a'",
        "'a' < n",
        "TRUE > 1",
        "n >= TRUE",
        "n BETWEEN 'a' AND 'b'",
        "n BETWEEN 1 AND 'b'",
        "'a' NOT BETWEEN 1 AND 2",
    ],
)
def test_texts_and_booleans_have_no_order(text: str) -> None:
    """RocketMQ refuses these; if accepted they would never match."""
    with pytest.raises(LocalMisuse, match="no order"):
        expressions.parse_sql92(text)


@pytest.mark.parametrize("text", ["9" * 4_301, "9" * 8_000, "1" * 101, "1e999", "-1e999", f".{'0' * 200}1"])
def test_numbers_out_of_range_are_refused(text: str) -> None:
    with pytest.raises(LocalMisuse, match="number"):
        expressions.parse_sql92(f"a = {text}")


_WORDS = st.sampled_from(
    "AND OR NOT BETWEEN IN IS NULL TRUE CONTAINS a b TAGS ( ) , = <> < >= + - ' ''".split()  # noqa: SIM905
)
_NUMBERS = st.from_regex(r"[+-]?\d{1,60}(\.\d{0,60})?([eE][+-]?\d{1,5})?[lL]?", fullmatch=True)
_TEXTS = st.text(max_size=8).map(lambda text: "'" + text.replace("'", "''") + "'")


@given(st.lists(_WORDS | _NUMBERS | _TEXTS | st.text(max_size=4), max_size=30).map(" ".join))
def test_whatever_is_written_is_a_predicate_or_a_refusal(text: str) -> None:
    try:
        predicate = expressions.parse_sql92(text)
    except LocalMisuse:
        return
    assert predicate(MESSAGE.get) in (True, False, None)


def test_expressions() -> None:
    assert expressions.parse_tags(" * ") is None
    assert expressions.parse_tags("") is None
    assert expressions.parse_tags("a || b||a") == ("a", "b")


@pytest.mark.parametrize(
    "wrong", ["a ||", "|| a", "a || *", "a||||b", "||".join(map(str, range(expressions.TAGS_MAX + 1)))]
)
def test_wrong_expressions(wrong: str) -> None:
    with pytest.raises(LocalMisuse):
        expressions.parse_tags(wrong)
