"""Spark SQL's column lists (`celsius double, at timestamp, tags array<string>`) → pyspark types, without a JVM.

The process that plans a Python source has no Spark session to ask. Types without a place in a body (intervals,
variants) are refused. Invariant: what is accepted has one meaning, the one Spark gives it. Pure.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from pyspark.sql import types

DEPTH_MAX = 32
"""Levels of nesting; more is refused."""
DECIMAL_DIGITS_MAX = 38
_SIMPLE: dict[str, types.DataType] = {
    word: made
    for words, made in (
        ("boolean", types.BooleanType()),
        ("tinyint byte", types.ByteType()),
        ("smallint short", types.ShortType()),
        ("int integer", types.IntegerType()),
        ("bigint long", types.LongType()),
        ("float real", types.FloatType()),
        ("double", types.DoubleType()),
        ("string", types.StringType()),
        ("binary", types.BinaryType()),
        ("date", types.DateType()),
        ("timestamp timestamp_ltz", types.TimestampType()),
        ("timestamp_ntz", types.TimestampNTZType()),
    )
    for word in words.split()
}
_TOKEN = re.compile(r"\s*(?:(?P<quoted>`(?:[^`]|``)+`)|(?P<text>'(?:[^'\\]|\\.)*')|(?P<word>\w+)|(?P<sign>[<>(),:]))")


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


class _DdlParser:
    """The tokens of a text and where we are."""

    def __init__(self, text: str) -> None:
        self._tokens: list[_Token] = []
        self._at = 0
        place = 0
        end = len(text.rstrip())
        while place < end:
            found = _TOKEN.match(text, place)
            if found is None:
                raise ValueError(f"character {place + 1}, {text[place:].lstrip()[:12]!r}, belongs to no column list")
            kind = str(found.lastgroup)
            self._tokens.append(_Token(kind, found[kind], found.start(kind)))
            place = found.end()

    def peek(self) -> str:
        """The next token, in lower case; empty at the end."""
        return self._tokens[self._at].text.lower() if self._at < len(self._tokens) else ""

    def next(self) -> _Token:
        """Take the next token."""
        if self._at == len(self._tokens):
            raise ValueError("it ends too early")
        self._at += 1
        return self._tokens[self._at - 1]

    def skip(self, text: str) -> bool:
        """Take the next token if it is this one."""
        if self.peek() != text:
            return False
        self._at += 1
        return True

    def expect(self, text: str) -> None:
        """Take this token; the error names what is there instead."""
        token = self.next()
        if token.text.lower() != text:
            raise ValueError(f"character {token.at + 1}: {text!r} is needed, not {token.text!r}")


def parse_columns(text: str) -> types.StructType:
    """Return the columns of a list; `struct<...>` around all of them is accepted. ValueError with half a sentence."""
    reader = _DdlParser(text)
    if not reader.peek():
        raise ValueError("it names no column")
    if reader.peek() == "struct" and "<" in text.partition("struct")[2][:2]:
        found = _type(reader, 0)
        assert isinstance(found, types.StructType)
    else:
        found = _fields(reader, 0, "")
    if reader.peek():
        token = reader.next()
        raise ValueError(f"character {token.at + 1}: {token.text!r} was not expected")
    return found


def _fields(reader: _DdlParser, depth: int, closing: str) -> types.StructType:
    fields: list[types.StructField] = []
    while True:
        name = reader.next()
        if name.kind not in {"word", "quoted"}:
            raise ValueError(f"character {name.at + 1}: a column's name is needed, not {name.text!r}")
        spelled = name.text[1:-1].replace("``", "`") if name.kind == "quoted" else name.text
        if any(spelled.lower() == other.name.lower() for other in fields):
            raise ValueError(f"the column {spelled!r} is there twice")
        reader.skip(":")
        fields.append(types.StructField(spelled, _type(reader, depth)))
        if reader.skip("not"):
            reader.expect("null")
        if reader.skip("comment"):
            reader.next()
        if reader.peek() == closing or not reader.skip(","):
            return types.StructType(fields)


def _type(reader: _DdlParser, depth: int) -> types.DataType:
    if depth > DEPTH_MAX:
        raise ValueError(f"it is nested deeper than {DEPTH_MAX} levels")
    token = reader.next()
    word = token.text.lower()
    if word in _SIMPLE:
        return _SIMPLE[word]
    if word in {"decimal", "dec", "numeric"}:
        return _decimal(reader)
    if word not in {"array", "map", "struct"}:
        raise ValueError(f"character {token.at + 1}: {token.text!r} is not a type that bodies have")
    reader.expect("<")
    made = _nested(reader, word, depth + 1)
    reader.expect(">")
    return made


def _nested(reader: _DdlParser, word: str, depth: int) -> types.DataType:
    if word == "array":
        return types.ArrayType(_type(reader, depth))
    if word == "struct":
        return _fields(reader, depth, ">")
    key = _type(reader, depth)
    reader.expect(",")
    return types.MapType(key, _type(reader, depth))


def _decimal(reader: _DdlParser) -> types.DecimalType:
    precision, scale = 10, 0
    if reader.skip("("):
        precision = _digits(reader)
        if reader.skip(","):
            scale = _digits(reader)
        reader.expect(")")
    if not 1 <= precision <= DECIMAL_DIGITS_MAX or scale > precision:
        raise ValueError(f"decimal({precision},{scale}) is not possible: 1 to {DECIMAL_DIGITS_MAX} digits")
    return types.DecimalType(precision, scale)


def _digits(reader: _DdlParser) -> int:
    token = reader.next()
    if not token.text.isdecimal():
        raise ValueError(f"character {token.at + 1}: a number is needed, not {token.text!r}")
    return int(token.text)
