"""One message of a batch as a plain value, as passed in by producers and returned to readers that unpack.

Invariant: texts are bytes, as everywhere on the wire; an empty key or tag means none. Thread rule: plain values.
"""

from __future__ import annotations

import msgspec


class BatchRow(msgspec.Struct, gc=False):
    """One message; topic and queue are those of the batch."""

    body: bytes
    born_ms: int = 0
    key: bytes = b""
    tag: bytes = b""
    properties: tuple[tuple[bytes, bytes], ...] = ()
