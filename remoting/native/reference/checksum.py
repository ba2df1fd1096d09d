"""CRC32C by the package google-crc32c, for installations without compiled modules.

Its extension takes only `bytes`, so other buffers are copied, a piece at a time. Where it has no wheel, the package
itself is plain Python: correct, but a thousand times slower, which `lightmq doctor` reports. Thread rule: a pure
function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from google_crc32c import extend

if TYPE_CHECKING:
    from remoting.native.checksum import Buffer

PIECE_BYTES = 1 << 18
"""Bytes per copied piece."""


def crc32c(data: Buffer, value: int = 0) -> int:
    """Return the checksum of `data`, continued from `value`."""
    if type(data) is bytes:
        return extend(value, data)  # type: ignore[no-any-return]
    if len(data) <= PIECE_BYTES:
        return extend(value, bytes(data))  # type: ignore[no-any-return]
    with memoryview(data) as view, view.cast("B") as flat:
        for at in range(0, len(flat), PIECE_BYTES):
            value = extend(value, bytes(flat[at : at + PIECE_BYTES]))
    return value
