"""msgpack and JSON bodies declared as msgspec structs: one encode, one decode that only raises RemoteViolation.

Invariant: a decoder is built once per type. Thread rule: pure functions (with a memo table of decoders, one per
declared type).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from remoting.protocol.errors import RemoteViolation

S = TypeVar("S", bound=msgspec.Struct)

_DECODERS_MAX = 128
_encode_msgpack = msgspec.msgpack.Encoder().encode
_encode_json = msgspec.json.Encoder().encode


@lru_cache(maxsize=_DECODERS_MAX)
def _msgpack_decoder(kind: type[msgspec.Struct]) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind)


@lru_cache(maxsize=_DECODERS_MAX)
def _json_decoder(kind: type[msgspec.Struct]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def encode(message: msgspec.Struct) -> bytes:
    """Return the msgpack body of a declared struct."""
    return _encode_msgpack(message)


def decode(kind: type[S], body: bytes | memoryview) -> S:
    """Return the struct of a msgpack body; RemoteViolation names the first member that does not fit."""
    try:
        decoded: S = _msgpack_decoder(kind).decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RemoteViolation(f"malformed {kind.__name__}: {error}") from error
    return decoded


def encode_json(message: msgspec.Struct) -> bytes:
    """Return the JSON body of a declared struct."""
    return _encode_json(message)


def decode_json(kind: type[S], body: bytes | memoryview) -> S:
    """Return the struct of a JSON body; RemoteViolation names the first member that does not fit."""
    try:
        decoded: S = _json_decoder(kind).decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RemoteViolation(f"malformed {kind.__name__}: {error}") from error
    return decoded
