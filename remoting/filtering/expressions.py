"""RocketMQ's filter expressions: tags separated by `||`, and SQL92 over message properties, parsed once to a predicate.

    a > 5 AND region IN ('north', 'south') OR (b IS NOT NULL AND NOT c BETWEEN 1 AND 9) OR name STARTSWITH 'x'

Names are properties (including `TAGS` and `KEYS`), whose values are text: compared with a number or a boolean they are
converted, and a text that cannot be is neither equal nor ordered. A missing property makes a comparison unknown; AND,
OR and NOT have three truth values as in SQL. Invariant: an expression is data and never run as Python; its length and
nesting are bounded. Pure.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from typing import NamedTuple

from remoting.protocol.errors import LocalMisuse

TEXT_MAX = 8_192
"""Characters of one expression; more are refused."""
DEPTH_MAX = 32
"""Parentheses and NOTs inside each other; more are refused."""
DIGITS_MAX = 40
"""Digits of a property's integer that is compared exactly; longer ones are compared as floating point."""
NUMBER_MAX = 100
"""Characters of a number in an expression; longer ones, and those beyond floating point's range, are refused."""

Value = str | int | float | bool | None
Properties = Callable[[str], str | None]
"""The value of a property by its name, None when the message does not have it."""
Operand = Callable[[Properties], Value]
Predicate = Callable[[Properties], bool | None]

_TOKEN = re.compile(
    r"""\s*(?:(?P<number>(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?[lL]?(?![\w.]))|(?P<text>'(?:[^']|'')*')
    |(?P<name>[A-Za-z_$][A-Za-z0-9_$]*)|(?P<sign><>|>=|<=|[=<>(),+-]))""",
    re.VERBOSE,
)
_WORDS = frozenset(
    ["AND", "OR", "NOT", "BETWEEN", "IN", "IS", "NULL", "TRUE", "FALSE", "CONTAINS", "STARTSWITH", "ENDSWITH"]
)
_ORDERS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_TEXT_TESTS: dict[str, Callable[[str, str], bool]] = {
    "CONTAINS": lambda text, part: part in text,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


class Token(NamedTuple):
    """One word, sign or constant, and its position."""

    kind: str
    text: str
    at: int


def parse_sql92(text: str) -> Predicate:
    """Return the predicate of an expression. Raises LocalMisuse that names the position of the error."""
    if len(text) > TEXT_MAX:
        raise LocalMisuse(f"an SQL expression of {len(text)} characters, the limit is {TEXT_MAX}")
    parser = _Parser(_tokens(text))
    found = parser.either()
    parser.expect("end", "")
    return found


def _tokens(text: str) -> list[Token]:
    found, at, end = [], 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            raise LocalMisuse(f"SQL expression: {text[at : at + 10].strip()!r} at character {at + 1} is not understood")
        kind = str(match.lastgroup)
        word = match.group(kind)
        if kind == "name" and word.upper() in _WORDS:
            kind, word = "word", word.upper()
        found.append(Token(kind, word, match.start(match.lastgroup or 0) + 1))
        at = match.end()
    return [*found, Token("end", "", end + 1)]


class _Parser:
    """Recursive descent over the tokens of one expression."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    def either(self) -> Predicate:
        """Parse `both OR both ...`: the lowest precedence."""
        found = [self.both()]
        while self.take("word", "OR"):
            found.append(self.both())
        return found[0] if len(found) == 1 else _any_of(found)

    def both(self) -> Predicate:
        """Parse `single AND single ...`."""
        found = [self.single()]
        while self.take("word", "AND"):
            found.append(self.single())
        return found[0] if len(found) == 1 else _all_of(found)

    def single(self) -> Predicate:
        """Parse `NOT ...`, an expression in parentheses, or a comparison."""
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise LocalMisuse(f"SQL expression: more than {DEPTH_MAX} parentheses or NOTs inside each other")
        try:
            if self.take("word", "NOT"):
                return _not(self.single())
            if self.take("sign", "("):
                found = self.either()
                self.expect("sign", ")")
                return found
            return self._comparison()
        finally:
            self._depth -= 1

    def take(self, kind: str, text: str) -> bool:
        """Step over a token if it is the next one."""
        if self._tokens[self._at][:2] != (kind, text):
            return False
        self._at += 1
        return True

    def expect(self, kind: str, text: str) -> None:
        """Step over a token that must be next."""
        if not self.take(kind, text):
            raise self._wrong(repr(text) if text else "the end")

    def _wrong(self, expected: str) -> LocalMisuse:
        token = self._tokens[self._at]
        said = repr(token.text) if token.text else "its end"
        return LocalMisuse(f"SQL expression: {expected} expected instead of {said} at character {token.at}")

    def _comparison(self) -> Predicate:
        first = self._tokens[self._at]
        left = self._operand()
        token = self._tokens[self._at]
        if token.kind == "sign" and token.text in {"=", "<>", *_ORDERS}:
            self._at += 1
            if token.text in _ORDERS:
                self._ordered(first, self._tokens[self._at])
            return _compare(token.text, left, self._operand())
        if self.take("word", "IS"):
            negated = self.take("word", "NOT")
            self.expect("word", "NULL")
            return lambda properties: (left(properties) is None) != negated
        negated = self.take("word", "NOT")
        if self._tokens[self._at][:2] == ("word", "BETWEEN"):
            self._ordered(first)
        found = self._word_test(left, negated=negated)
        if found is None:
            # Alone it is a condition: a property that is true.
            return _compare("=", left, lambda _: True)
        return _not(found) if negated else found

    def _ordered(self, *tokens: Token) -> None:
        """Refuse constants without an order, as RocketMQ does."""
        for token in tokens:
            if token.kind == "text" or (token.kind == "word" and token.text in {"TRUE", "FALSE"}):
                remark = f"SQL expression: {token.text} at character {token.at} is not a number and has no order"
                raise LocalMisuse(remark)

    def _word_test(self, left: Operand, *, negated: bool) -> Predicate | None:
        """Parse `IN`, `BETWEEN` and the tests of texts; None when none of them follows."""
        if self.take("word", "IN"):
            return _in(left, self._texts())
        if self.take("word", "BETWEEN"):
            self._ordered(self._tokens[self._at])
            low = self._operand()
            self.expect("word", "AND")
            self._ordered(self._tokens[self._at])
            return _all_of([_compare(">=", left, low), _compare("<=", left, self._operand())])
        for word, test in _TEXT_TESTS.items():
            if self.take("word", word):
                return _text_test(test, left, self._text())
        if negated:
            raise self._wrong("IN, BETWEEN, CONTAINS, STARTSWITH or ENDSWITH")
        return None

    def _texts(self) -> frozenset[str]:
        self.expect("sign", "(")
        found = [self._text()]
        while self.take("sign", ","):
            found.append(self._text())
        self.expect("sign", ")")
        return frozenset(found)

    def _text(self) -> str:
        token = self._tokens[self._at]
        if token.kind != "text":
            raise self._wrong("a text in single quotes")
        self._at += 1
        return _unquoted(token.text)

    def _operand(self) -> Operand:
        token = self._tokens[self._at]
        if token.kind == "sign" and token.text in {"+", "-"} and self._tokens[self._at + 1].kind == "number":
            self._at += 1
            return _constant(_number(self._next().text) * (-1 if token.text == "-" else 1))
        if token.kind == "name":
            name = self._next().text
            return lambda properties: properties(name)
        if token.kind == "number":
            return _constant(_number(self._next().text))
        if token.kind == "text":
            return _constant(_unquoted(self._next().text))
        if token.kind == "word" and token.text in {"TRUE", "FALSE"}:
            return _constant(self._next().text == "TRUE")
        raise self._wrong("a property, a number or a text in single quotes")

    def _next(self) -> Token:
        self._at += 1
        return self._tokens[self._at - 1]


def _unquoted(text: str) -> str:
    return text[1:-1].replace("''", "'")


def _number(text: str) -> int | float:
    if len(text) > NUMBER_MAX:
        raise LocalMisuse(f"SQL expression: a number of {len(text)} characters, the limit is {NUMBER_MAX}")
    plain = text.rstrip("lL")
    try:
        number = int(plain) if plain.isdigit() else float(plain)
    except ValueError as error:
        raise LocalMisuse(f"SQL expression: {text!r} is not a number") from error
    if number in (math.inf, -math.inf):
        raise LocalMisuse(f"SQL expression: {text!r} is too large a number")
    return number


def _constant(value: Value) -> Operand:
    return lambda _: value


def _any_of(parts: list[Predicate]) -> Predicate:
    def judge(properties: Properties) -> bool | None:
        unknown = False
        for part in parts:
            found = part(properties)
            if found:
                return True
            unknown = unknown or found is None
        return None if unknown else False

    return judge


def _all_of(parts: list[Predicate]) -> Predicate:
    def judge(properties: Properties) -> bool | None:
        unknown = False
        for part in parts:
            found = part(properties)
            if found is False:
                return False
            unknown = unknown or found is None
        return None if unknown else True

    return judge


def _not(part: Predicate) -> Predicate:
    def judge(properties: Properties) -> bool | None:
        found = part(properties)
        return None if found is None else not found

    return judge


def _in(left: Operand, texts: frozenset[str]) -> Predicate:
    def judge(properties: Properties) -> bool | None:
        found = left(properties)
        return None if found is None else found in texts

    return judge


def _text_test(test: Callable[[str, str], bool], left: Operand, part: str) -> Predicate:
    def judge(properties: Properties) -> bool | None:
        found = left(properties)
        return None if found is None else isinstance(found, str) and test(found, part)

    return judge


def _compare(sign: str, left: Operand, right: Operand) -> Predicate:
    order = _ORDERS.get(sign)

    def judge(properties: Properties) -> bool | None:
        one, other = left(properties), right(properties)
        if one is None or other is None:
            return None
        if order is None:
            return _equal(one, other) == (sign == "=")
        low, high = _as_number(one), _as_number(other)
        return low is not None and high is not None and order(low, high)

    return judge


def _equal(one: str | float | bool, other: str | float | bool) -> bool:
    """Compare two values by the type that is not text; a text that cannot be converted is not equal."""
    if isinstance(one, bool) or isinstance(other, bool):
        return str(one).lower() == str(other).lower()
    if isinstance(one, str) and isinstance(other, str):
        return one == other
    low, high = _as_number(one), _as_number(other)
    return low is not None and low == high


def _as_number(value: str | float | bool) -> int | float | None:
    if isinstance(value, bool):
        return None
    if not isinstance(value, str):
        return value
    try:
        return int(value) if len(value) <= DIGITS_MAX else float(value)
    except ValueError:
        pass
    try:
        return float(value)
    except ValueError:
        return None


TAGS_MAX = 1_000
"""Tags of one expression; more are refused."""


def parse_tags(text: str) -> tuple[str, ...] | None:
    """Return the tags of an expression, None for all messages. Raises LocalMisuse."""
    if text.strip() in {"", "*"}:
        return None
    found = tuple(dict.fromkeys(part.strip() for part in text.split("||")))
    if "" in found or "*" in found:
        raise LocalMisuse(f"the tag expression {text!r} has an empty part or a * among others")
    if len(found) > TAGS_MAX:
        raise LocalMisuse(f"a tag expression of {len(found)} tags, the limit is {TAGS_MAX}")
    return found
