"""Who makes a call: the metadata of RocketMQ's gRPC clients.

    x-mq-client-id      required; names the client in every other call
    x-mq-date-time      what is signed
    authorization       MQv2-HMAC-SHA1 Credential=KEY[/…], SignedHeaders=x-mq-date-time, Signature=HEX

GrpcClients without credentials leave `authorization` out, or send it with an empty key. Pure.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import unquote

from grpc_proxy.mapping.statuses import CallRejected, Code

ALGORITHM = "MQv2-HMAC-SHA1"
CLIENT_ID_CHARS_MAX = 512
LANGUAGES = {"JAVA", "CPP", "DOTNET", "PYTHON", "GO", "PHP", "RUST", "NODE_JS"}
"""Languages that the broker shows by name."""


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

    @property
    def loopback(self) -> bool:
        """Whether the client is on this machine."""
        try:
            parsed = ipaddress.ip_address(self.host)
        except ValueError:
            return self.host == "unix"
        mapped = getattr(parsed, "ipv4_mapped", None)
        return bool((mapped or parsed).is_loopback)


def caller_of(pairs: Iterable[tuple[str, str | bytes]], peer: str) -> GrpcCaller:
    """Return the client of a call with this metadata from gRPC's name of the peer, such as `ipv4:10.0.0.7:4711`.

    Raises:
        CallRejected: CLIENT_ID_REQUIRED, or UNAUTHORIZED for an authorization that cannot be read.
    """
    given = {name.lower(): text for name, text in pairs if isinstance(text, str)}
    client_id = given.get("x-mq-client-id", "")
    if not client_id or len(client_id) > CLIENT_ID_CHARS_MAX or not client_id.isprintable():
        raise CallRejected(Code.CLIENT_ID_REQUIRED, "the metadata x-mq-client-id is missing or malformed")
    language = given.get("x-mq-language", "").upper()
    key, signature = _credentials(given.get("authorization", ""))
    return GrpcCaller(
        client_id=client_id,
        host=host_of(peer),
        language=language if language in LANGUAGES else "OTHER",
        key=key,
        date_time=given.get("x-mq-date-time", ""),
        signature=signature,
    )


def host_of(peer: str) -> str:
    """Return the address in gRPC's name of a peer, without kind and port; `unix` for a local socket."""
    kind, _, place = unquote(peer).partition(":")
    if kind not in ("ipv4", "ipv6"):
        return kind
    return place.rpartition(":")[0].strip("[]").partition("%")[0]


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
