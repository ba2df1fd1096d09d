"""The two header serialisations of a remoting command: RocketMQ's JSON object and its binary form.

    JSON      {"code","language","version","opaque","flag","remark"?,"extFields"?,"serializeTypeCurrentRPC"}
    ROCKETMQ  i16 code | i8 language | i16 version | i32 opaque | i32 flag | i32 n, remark
              i32 n, {i16 n, key, i32 n, value}*                                                big-endian

Invariant: decode(encode(c)) == c for every command whose fields fit; what peers really send is accepted: numbers and
booleans as field values, request codes above 16 bits wrapped by the binary form. Nothing but RemoteViolation leaves a
decoder. Thread rule: pure functions.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Generic, TypeVar

import msgspec

from remoting.protocol.errors import LocalMisuse, RemoteViolation
from remoting.protocol.frames.commands import SERIALIZE_JSON, SERIALIZE_ROCKETMQ, Command

LANGUAGES = (
    "JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY",
    "OTHER", "HTTP", "GO", "PHP", "OMS", "RUST", "NODE_JS",
)  # fmt: skip
"""Language names by their ordinal in the binary header."""
_LANGUAGE_ORDINALS = {name: ordinal for ordinal, name in enumerate(LANGUAGES)}
_OTHER = _LANGUAGE_ORDINALS["OTHER"]

_WRAP = 196_608
"""What a request code above 16 bits lost in the binary form: 200050 arrives as 3442."""
_WRAPPED_CODES = frozenset({3442, 3443, 3444, 3445, 3446, 3447, 3543})
_I16_MAX = 32_767

_FIXED = struct.Struct(">hbhiii")
_I32 = struct.Struct(">i")
_I16 = struct.Struct(">h")


_Scalar = str | int | float | bool | None
Value = TypeVar("Value")


class _JsonHeader(msgspec.Struct, Generic[Value], omit_defaults=True):
    """The JSON header as it stands on the wire; absent members take RocketMQ's defaults."""

    code: int
    language: str = "JAVA"
    version: int = 0
    opaque: int = 0
    flag: int = 0
    remark: str | None = None
    extFields: dict[str, Value] | None = None  # noqa: N815 - the wire's own name
    serializeTypeCurrentRPC: str = ""  # noqa: N815


class _WrittenHeader(msgspec.Struct, omit_defaults=True):
    """The JSON header as we write it: an id of 0 too, in whose absence Java gives the answer an id of its own."""

    code: int
    language: str
    version: int
    opaque: int
    flag: int
    serializeTypeCurrentRPC: str  # noqa: N815
    remark: str | None = None
    extFields: Mapping[str, str] | None = None  # noqa: N815


_encode_json = msgspec.json.Encoder().encode

_decode_plain = msgspec.json.Decoder(_JsonHeader[str]).decode
"""As most peers write it: every field value a string."""
_decode_lenient = msgspec.json.Decoder(_JsonHeader[_Scalar]).decode
"""As C++ clients mix them."""


def encode_header(command: Command) -> bytes:
    """Return the header bytes of `command` in its own serialisation; LocalMisuse if a value cannot be written."""
    if command.serialize_type == SERIALIZE_JSON:
        header = _WrittenHeader(
            command.code,
            command.language,
            command.version,
            command.opaque,
            command.flag,
            "JSON",
            command.remark,
            command.fields or None,
        )
        try:
            return _encode_json(header)
        except (msgspec.MsgspecError, ValueError, TypeError, OverflowError) as error:
            raise LocalMisuse(f"command {command.code} has a header that JSON cannot carry: {error}") from error
    if command.serialize_type == SERIALIZE_ROCKETMQ:
        return _encode_binary(command)
    raise LocalMisuse(f"serialize type {command.serialize_type} is neither 0 (JSON) nor 1 (ROCKETMQ)")


def decode_header(serialize_type: int, data: bytes | memoryview, body: bytes = b"") -> Command:
    """Return the command of a header; RemoteViolation says what is wrong with it."""
    if serialize_type == SERIALIZE_JSON:
        return _decode_json_header(data, body)
    if serialize_type == SERIALIZE_ROCKETMQ:
        return _decode_binary(bytes(data), body)
    raise RemoteViolation(f"unknown header serialisation {serialize_type}: 0 (JSON) and 1 (ROCKETMQ) exist")


def _decode_json_header(data: bytes | memoryview, body: bytes) -> Command:
    header: _JsonHeader[str] | _JsonHeader[_Scalar]
    try:
        header = plain = _decode_plain(data)
        fields = plain.extFields or {}
    except (msgspec.MsgspecError, ValueError, RecursionError):
        header = _lenient_header(data)
        given = header.extFields or {}
        fields = {key: _text(value) for key, value in given.items() if value is not None}
    return Command(
        header.code, header.opaque, header.flag, header.remark, fields, body, header.language, header.version
    )  # fmt: skip


def _lenient_header(data: bytes | memoryview) -> _JsonHeader[_Scalar]:
    """Return a header whose field values are any JSON scalars, as C++ clients mix them."""
    try:
        return _decode_lenient(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RemoteViolation(f"malformed JSON header: {error}") from error


def _text(value: str | float | bool) -> str:
    """Return a JSON scalar as the text RocketMQ's own clients would have sent."""
    if value is True:
        return "true"
    if value is False:
        return "false"
    return str(value)


def _encode_binary(command: Command) -> bytes:
    code = command.code
    if code > _I16_MAX and code - _WRAP in _WRAPPED_CODES:
        code -= _WRAP
    parts: list[bytes] = []
    try:
        for key, value in command.fields.items():
            raw_key, raw_value = key.encode(), value.encode()
            parts += (_I16.pack(len(raw_key)), raw_key, _I32.pack(len(raw_value)), raw_value)
        extension = b"".join(parts)
        remark = (command.remark or "").encode()
        language = _LANGUAGE_ORDINALS.get(command.language, _OTHER)
        fixed = _FIXED.pack(code, language, command.version, command.opaque, command.flag, len(remark))
    except (struct.error, UnicodeEncodeError, AttributeError) as error:
        raise LocalMisuse(f"command {command.code} does not fit the binary header: {error}") from error
    return b"".join((fixed, remark, _I32.pack(len(extension)), extension))


def _decode_binary(data: bytes, body: bytes) -> Command:
    try:
        code, language, version, opaque, flag, remark_length = _FIXED.unpack_from(data)
        at = _FIXED.size
        remark = _take(data, at, remark_length)
        at += remark_length
        (extension_length,) = _I32.unpack_from(data, at)
        at += 4
        if extension_length < 0 or at + extension_length != len(data):
            raise RemoteViolation(f"binary header: {extension_length} bytes of fields do not end with the header")
        fields = _binary_fields(data, at)
    except (struct.error, UnicodeDecodeError) as error:
        raise RemoteViolation(f"malformed binary header: {error}") from error
    if code in _WRAPPED_CODES and not flag & 1:
        code += _WRAP
    name = LANGUAGES[language] if 0 <= language < len(LANGUAGES) else "OTHER"
    return Command(code, opaque, flag, remark or None, fields, body, name, version, SERIALIZE_ROCKETMQ)


def _binary_fields(data: bytes, at: int) -> dict[str, str]:
    fields: dict[str, str] = {}
    while at < len(data):
        (key_length,) = _I16.unpack_from(data, at)
        key = _take(data, at + 2, key_length)
        at += 2 + key_length
        (value_length,) = _I32.unpack_from(data, at)
        fields[key] = _take(data, at + 4, value_length)
        at += 4 + value_length
    return fields


def _take(data: bytes, at: int, length: int) -> str:
    if length < 0 or at + length > len(data):
        raise RemoteViolation(f"binary header: a text of {length} bytes at {at} passes the header's {len(data)} bytes")
    return data[at : at + length].decode()
