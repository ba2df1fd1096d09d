"""Length-prefixed frames of the remoting protocol with their two header forms: bytes <-> commands. Big-endian.

    frame     u32 length (of what follows) | u8 serialise type, u24 header length | header | body
    JSON      {"code","language","version","opaque","flag","remark"?,"extFields"?,"serializeTypeCurrentRPC"}
    ROCKETMQ  i16 code | i8 language | i16 version | i32 opaque | i32 flag | i32 n, remark
              i32 n, {i16 n, key, i32 n, value}*

Invariant: feeding a byte stream in any pieces yields the same commands, and decode(encode(c)) == c for every command
whose fields fit. Deviations of real peers are accepted: numbers and booleans as field values, request codes above 16
bits wrapped by the binary form. A decoder raises only RemoteViolation and then drops everything, because nothing after
a broken length can be trusted. Thread rule: one decoder belongs to one connection; the functions are pure.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

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


class _JsonHeader(msgspec.Struct, omit_defaults=True):
    """The JSON header on the wire; absent members take RocketMQ's defaults."""

    code: int
    language: str = "JAVA"
    version: int = 0
    opaque: int = 0
    flag: int = 0
    remark: str | None = None
    extFields: dict[str, str] | None = None  # noqa: N815 - the wire's own name
    serializeTypeCurrentRPC: str = ""  # noqa: N815


class _LenientHeader(msgspec.Struct):
    """The JSON header with members of other types that RocketMQ's own reader takes."""

    code: int
    language: _Scalar = "JAVA"
    version: int | None = 0
    opaque: int | None = 0
    flag: int | None = 0
    remark: _Scalar = None
    extFields: dict[str, _Scalar] | None = None  # noqa: N815


class _WrittenHeader(msgspec.Struct, omit_defaults=True):
    """The JSON header as written here, including an id of 0: without it Java assigns the answer a new id."""

    code: int
    language: str
    version: int
    opaque: int
    flag: int
    serializeTypeCurrentRPC: str  # noqa: N815
    remark: str | None = None
    extFields: Mapping[str, str] | None = None  # noqa: N815


_encode_json = msgspec.json.Encoder().encode

_decode_plain = msgspec.json.Decoder(_JsonHeader).decode
"""The form of most peers: every field value is a string."""
_decode_lenient = msgspec.json.Decoder(_LenientHeader, strict=False).decode
"""The form of others: field values are any JSON scalars, numbers are written as text or null."""


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
    """Return the command of a header. Raises RemoteViolation."""
    if serialize_type == SERIALIZE_JSON:
        return _decode_json_header(data, body)
    if serialize_type == SERIALIZE_ROCKETMQ:
        return _decode_binary(bytes(data), body)
    raise RemoteViolation(f"unknown header serialisation {serialize_type}: 0 (JSON) and 1 (ROCKETMQ) exist")


def _decode_json_header(data: bytes | memoryview, body: bytes) -> Command:
    try:
        header = _decode_plain(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return _decode_unusual_header(data, body)
    return Command(
        header.code, header.opaque, header.flag, header.remark, header.extFields or {}, body, header.language,
        header.version,
    )  # fmt: skip


def _decode_unusual_header(data: bytes | memoryview, body: bytes) -> Command:
    """Read a header as RocketMQ's JSON reader would: C++ clients, for one, mix the types of field values."""
    try:
        header = _decode_lenient(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RemoteViolation(f"malformed JSON header: {error}") from error
    fields = {key: _text(value) for key, value in (header.extFields or {}).items() if value is not None}
    remark = None if header.remark is None else _text(header.remark)
    return Command(
        header.code, header.opaque or 0, header.flag or 0, remark, fields, body, _language(header.language),
        header.version or 0,
    )  # fmt: skip


def _language(value: _Scalar) -> str:
    """Return the name of a language given by name or ordinal."""
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(LANGUAGES):
        return LANGUAGES[value]
    return "OTHER"


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


FRAME_SIZE_BYTES_MAX = 16_777_216
"""Largest frame accepted by default, RocketMQ's own limit; a longer one closes the connection."""
_HEADER_LENGTH_MAX = 0xFFFFFF
_PREFIX = struct.Struct(">II")
_PREFIX_SIZE = _PREFIX.size
_WORD_SIZE = 4
_VIEW_WORTH = 65_536
"""Body size in bytes from which a view of the buffer costs less than a slice of it."""


def encode_frame(command: Command) -> bytes:
    """Return the whole frame of `command`; LocalMisuse if its header cannot be written."""
    header = encode_header(command)
    header_length = len(header)
    if header_length > _HEADER_LENGTH_MAX:
        raise LocalMisuse(f"header of {header_length} bytes, a frame carries at most {_HEADER_LENGTH_MAX}")
    body = command.body
    prefix = _PREFIX.pack(_WORD_SIZE + header_length + len(body), command.serialize_type << 24 | header_length)
    return b"".join((prefix, header, body))


class FrameDecoder:
    """Turns the bytes of one connection into commands; once `feed` has raised RemoteViolation, it drops all input."""

    __slots__ = ("_buffer", "_dead", "_frame_size_bytes_max", "_wanted_bytes")

    def __init__(self, frame_size_bytes_max: int = FRAME_SIZE_BYTES_MAX) -> None:
        self._frame_size_bytes_max = frame_size_bytes_max
        self._buffer = bytearray()
        self._wanted_bytes = _PREFIX_SIZE
        self._dead = False

    @property
    def buffered_bytes(self) -> int:
        """Bytes buffered of an unfinished frame."""
        return len(self._buffer)

    @property
    def frame_bytes(self) -> int:
        """Size of the unfinished frame, once its first bytes are there."""
        return self._wanted_bytes

    def unfinished_head(self) -> Command | None:
        """Return the unfinished frame's header, without body; None until it is complete. Raises RemoteViolation."""
        if len(self._buffer) < _PREFIX_SIZE:
            return None
        _, word = _PREFIX.unpack_from(self._buffer)
        body_at = _PREFIX_SIZE + (word & _HEADER_LENGTH_MAX)
        if len(self._buffer) < body_at:
            return None
        return decode_header(word >> 24, bytes(self._buffer[_PREFIX_SIZE:body_at]), b"")

    def feed(self, data: bytes | bytearray | memoryview) -> list[Command]:
        """Return the commands completed by `data`; a violation also discards those before it in the same piece."""
        if self._dead:
            return []
        buffer = self._buffer
        if buffer:
            buffer += data
            # A long frame arrives in many pieces: it is parsed again only when complete.
            if len(buffer) < self._wanted_bytes:
                return []
            source: bytes | bytearray = buffer
        else:
            source = data if data.__class__ is bytes else bytes(data)
        try:
            commands, consumed = self._parse(source)
        except RemoteViolation:
            self._dead = True
            self._buffer = bytearray()
            raise
        if source is buffer:
            del buffer[:consumed]
        elif consumed < len(source):
            buffer += source[consumed:]
        return commands

    def _parse(self, source: bytes | bytearray) -> tuple[list[Command], int]:
        """Return the whole frames at the start of `source` and how many bytes they took."""
        commands: list[Command] = []
        at, end = 0, len(source)
        unpack_from = _PREFIX.unpack_from
        while end - at >= _PREFIX_SIZE:
            length, word = unpack_from(source, at)
            header_length = word & _HEADER_LENGTH_MAX
            if length + _WORD_SIZE > self._frame_size_bytes_max:
                raise RemoteViolation(
                    f"frame of {length + _WORD_SIZE} bytes, the limit is {self._frame_size_bytes_max}"
                )
            if header_length + _WORD_SIZE > length:
                raise RemoteViolation(f"header of {header_length} bytes in a frame of {length}")
            frame_end = at + _WORD_SIZE + length
            if frame_end > end:
                self._wanted_bytes = frame_end - at
                return commands, at
            header_at = at + _PREFIX_SIZE
            body_at = header_at + header_length
            # Slices of a bytearray are copied to bytes: commands outlive the buffer's content.
            header = bytes(source[header_at:body_at])
            if frame_end - body_at < _VIEW_WORTH:
                body = bytes(source[body_at:frame_end])
            else:  # one copy of a large body instead of two; the view must be released before the buffer is reused
                with memoryview(source) as view:
                    body = bytes(view[body_at:frame_end])
            commands.append(decode_header(word >> 24, header, body))
            at = frame_end
        self._wanted_bytes = _PREFIX_SIZE
        return commands, at
