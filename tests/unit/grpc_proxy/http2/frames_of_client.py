"""What a client of HTTP/2 sends, frame by frame, and a reader of what the server answers."""

from __future__ import annotations

from collections.abc import Sequence

from grpc_proxy.http2.frames import END_HEADERS, END_STREAM, PREFACE, Kind, head
from grpc_proxy.http2.hpack import block

PATH = b"/apache.rocketmq.v2.MessagingService/Heartbeat"
REQUEST_FIELDS = (
    (b":method", b"POST"), (b":scheme", b"http"), (b":path", PATH), (b":authority", b"a"), (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
)  # fmt: skip
HELLO = PREFACE + head(Kind.SETTINGS, 0, 0, 0)


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return head(kind, flags, stream_id, len(payload)) + payload


def headers(stream_id: int, fields: Sequence[tuple[bytes, bytes]] = REQUEST_FIELDS, flags: int = END_HEADERS) -> bytes:
    return frame(Kind.HEADERS, flags, stream_id, block(fields))


def data(stream_id: int, payload: bytes, *, end: bool = False) -> bytes:
    return frame(Kind.DATA, END_STREAM if end else 0, stream_id, payload)


def number(value: int) -> bytes:
    return value.to_bytes(4, "big")


def split(raw: bytes) -> list[tuple[int, int, int, bytes]]:
    """(kind, flags, stream, payload) of each frame."""
    found, at = [], 0
    while at < len(raw):
        size = int.from_bytes(raw[at : at + 3], "big")
        stream_id = int.from_bytes(raw[at + 5 : at + 9], "big")
        found.append((raw[at + 3], raw[at + 4], stream_id, raw[at + 9 : at + 9 + size]))
        at += 9 + size
    assert at == len(raw), "the last frame is cut short"
    return found
