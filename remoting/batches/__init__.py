"""One message of a batch as a plain value: what a producer passes in and what a reader that unpacks gets.

Invariant: texts are bytes, as everywhere on the wire; an empty key or tag means none. Thread rule: plain values.
"""

from __future__ import annotations

import msgspec


class BatchRow(msgspec.Struct, gc=False):
    """One message; its topic and queue are the whole batch's."""

    body: bytes
    born_ms: int = 0
    key: bytes = b""
    tag: bytes = b""
    properties: tuple[tuple[bytes, bytes], ...] = ()
