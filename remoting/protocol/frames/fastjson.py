"""JSON as old Java clients write it (fastjson 1), and the one non-standard form they need to read.

Beyond standard JSON the reader takes keys without quotes (`{0:"a"}`, `{name:1}`), single quotes, and objects as keys
(`{{"queueId":0}:{…}}`), which become text: the key object in standard JSON. Standard bodies take the fast path.
Invariant: standard JSON is read as such; the reader raises only RemoteViolation.
Thread rule: pure functions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from remoting.protocol.errors import RemoteViolation

DEPTH_MAX = 64
"""Deepest nesting read; deeper bodies are refused."""

_SPACE = re.compile(r"\s*")
_SCALAR = re.compile(r"[^\s,:{}\[\]\"']+")
_DOUBLE = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_SINGLE = re.compile(r"'(?:[^'\\]|\\.)*'", re.DOTALL)
_decode = msgspec.json.decode
_encode = msgspec.json.encode


def loads(data: bytes | memoryview) -> Any:
    """Return the value of a JSON body, standard or fastjson's; RemoteViolation names the position of the error."""
    try:
        return _decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        pass
    try:
        text = bytes(data).decode()
    except UnicodeDecodeError as error:
        raise RemoteViolation(f"JSON body is not UTF-8: {error}") from error
    reader = _JsonParser(text)
    value = reader.value(0)
    reader.expect_end()
    return value


def object_keys(entries: Iterable[tuple[Mapping[str, Any], Any]]) -> bytes:
    """Return an object whose keys are objects, `{{…}:…,…}`: Java tools read it as an offset table."""
    return b"{" + b",".join([_encode(key) + b":" + _encode(value) for key, value in entries]) + b"}"


class _JsonParser:
    """Recursive descent over one text; depth is bounded by DEPTH_MAX."""

    __slots__ = ("_at", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def value(self, depth: int) -> Any:
        """Parse one JSON value at this nesting depth. Raises RemoteViolation."""
        if depth > DEPTH_MAX:
            raise RemoteViolation(f"JSON body nests deeper than {DEPTH_MAX}")
        character = self._peek()
        if character == "{":
            return self._object(depth)
        if character == "[":
            return self._array(depth)
        if character in ('"', "'"):
            return self._string(character)
        word = self._word()
        try:
            return _decode(word.encode())
        except (msgspec.MsgspecError, ValueError) as error:
            raise RemoteViolation(f"JSON body: {word[:32]!r} before {self._at} is not a value") from error

    def expect_end(self) -> None:
        """Refuse anything after the value."""
        if self._peek():
            raise RemoteViolation(f"JSON body: {self._text[self._at : self._at + 16]!r} follows its value")

    def _peek(self) -> str:
        found = _SPACE.match(self._text, self._at)
        assert found is not None, "a pattern of zero or more always matches"
        self._at = found.end()
        return self._text[self._at : self._at + 1]

    def _take(self, wanted: str) -> bool:
        if self._peek() != wanted:
            return False
        self._at += 1
        return True

    def _need(self, wanted: str) -> None:
        if not self._take(wanted):
            raise RemoteViolation(f"JSON body: {wanted!r} is missing at {self._at}")

    def _word(self) -> str:
        found = _SCALAR.match(self._text, self._at)
        if found is None:
            raise RemoteViolation(f"JSON body: a value is missing at {self._at}")
        self._at = found.end()
        return found[0]

    def _string(self, quote: str) -> str:
        found = (_DOUBLE if quote == '"' else _SINGLE).match(self._text, self._at)
        if found is None:
            raise RemoteViolation(f"JSON body: the text at {self._at} has no end")
        self._at = found.end()
        raw = found[0]
        if quote == "'":
            raw = '"' + raw[1:-1].replace("\\'", "'").replace('"', '\\"') + '"'
        try:
            return str(_decode(raw.encode()))
        except (msgspec.MsgspecError, ValueError) as error:
            raise RemoteViolation(f"JSON body: malformed text before {self._at}") from error

    def _key(self, depth: int) -> str:
        character = self._peek()
        if character in ("{", "["):
            return _encode(self.value(depth + 1)).decode()
        return self._string(character) if character in ('"', "'") else self._word()

    def _object(self, depth: int) -> dict[str, Any]:
        self._need("{")
        members: dict[str, Any] = {}
        while not self._take("}"):
            key = self._key(depth)
            self._need(":")
            members[key] = self.value(depth + 1)
            if not self._take(","):
                self._need("}")
                break
        return members

    def _array(self, depth: int) -> list[Any]:
        self._need("[")
        items: list[Any] = []
        while not self._take("]"):
            items.append(self.value(depth + 1))
            if not self._take(","):
                self._need("]")
                break
        return items
