"""Who makes a call: the metadata of RocketMQ's gRPC clients.

    x-mq-client-id      required; names the client in every other call
    x-mq-date-time      what is signed
    authorization       MQv2-HMAC-SHA1 Credential=KEY[/…], SignedHeaders=x-mq-date-time, Signature=HEX

GrpcClients without credentials leave `authorization` out, or send it with an empty key. Pure.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass

from grpc_proxy.mapping.statuses import CallRejected, Code

ALGORITHM = "MQv2-HMAC-SHA1"
CLIENT_ID_CHARS_MAX = 512
LANGUAGES = {"JAVA", "CPP", "DOTNET", "PYTHON", "GO", "PHP", "RUST", "NODE_JS"}
"""Languages that the broker shows by name."""
_CLIENT_ID, _DATE_TIME = b"x-mq-client-id", b"x-mq-date-time"
_AUTHORIZATION, _LANGUAGE = b"authorization", b"x-mq-language"


@dataclass(frozen=True, slots=True)
class GrpcCaller:
    """The client of one call, as it presents itself."""

    client_id: str
    host: str
    language: str = "OTHER"
    key: str = ""
    """Its access key; empty for an anonymous client."""
    date_time: str = ""
    signature: str = ""

    loopback: bool = False
    """Whether the client is on this machine."""


def shown_by(fields: Mapping[bytes, bytes], host: str) -> tuple[bytes | str | None, ...]:
    """Return what `caller_of` reads: calls with the same have the same caller."""
    get = fields.get
    return get(_CLIENT_ID), get(_DATE_TIME), get(_AUTHORIZATION), get(_LANGUAGE), host


def caller_of(fields: Mapping[bytes, bytes], host: str) -> GrpcCaller:
    """Return the client of a call with this metadata from this address.

    Raises:
        CallRejected: CLIENT_ID_REQUIRED, or UNAUTHORIZED for an authorization that cannot be read.
    """
    client_id = _text(fields, _CLIENT_ID)
    if not client_id or len(client_id) > CLIENT_ID_CHARS_MAX or not client_id.isprintable():
        raise CallRejected(Code.CLIENT_ID_REQUIRED, "the metadata x-mq-client-id is missing or malformed")
    language = _text(fields, _LANGUAGE).upper()
    key, signature = _credentials(_text(fields, _AUTHORIZATION))
    return GrpcCaller(
        client_id=client_id,
        host=host,
        language=language if language in LANGUAGES else "OTHER",
        key=key,
        date_time=_text(fields, _DATE_TIME),
        signature=signature,
        loopback=is_loopback(host),
    )


def is_loopback(host: str) -> bool:
    """Whether an address is one of this machine's loopback; `unix`: a local socket."""
    try:
        parsed = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host == "unix"
    mapped = getattr(parsed, "ipv4_mapped", None)
    return bool((mapped or parsed).is_loopback)


def _text(fields: Mapping[bytes, bytes], name: bytes) -> str:
    return fields.get(name, b"").decode("utf-8", "replace")


def _credentials(text: str) -> tuple[str, str]:
    """Return (key, signature); both empty when none are given."""
    if not text:
        return "", ""
    algorithm, _, rest = text.partition(" ")
    parts = dict(part.strip().partition("=")[::2] for part in rest.split(","))
    key = parts.get("Credential", "").partition("/")[0]
    if algorithm != ALGORITHM or "Credential" not in parts or "Signature" not in parts:
        raise CallRejected(
            Code.UNAUTHORIZED, f"the authorization is not of the form {ALGORITHM} Credential=…, Signature=…"
        )
    return (key, parts["Signature"]) if key else ("", "")
