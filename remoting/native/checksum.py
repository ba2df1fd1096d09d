"""CRC32C, the checksum of records, frames and files: `crc32c(data, value=0)`, which continues from `value`.

Invariant: both twins give the numbers of RFC 3720 for every contiguous buffer. Thread rule: any thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from remoting.native.choice import Choice, choose

Buffer: TypeAlias = Any
"""An object that exposes contiguous bytes: bytes, bytearray, memoryview, mmap, a column's `data`."""
Checksum: TypeAlias = Callable[..., int]


def _compiled() -> Checksum:
    from remoting.native.compiled import checksum as compiled_checksum

    return compiled_checksum.crc32c  # type: ignore[no-any-return]


def _pure() -> Checksum:
    from remoting.native.reference import checksum as pure_checksum

    return pure_checksum.crc32c


choice: Choice[Checksum] = choose(_compiled, _pure)
"""The twin in use, and the reason."""
crc32c: Checksum = choice.core
BY_PLAIN_PYTHON = "by plain Python"


def way() -> str:
    """Return how checksums are computed here, as text for operators."""
    if choice.reason:
        import google_crc32c

        return "by google-crc32c" if google_crc32c.implementation == "c" else BY_PLAIN_PYTHON
    from remoting.native.compiled import checksum as compiled_checksum

    return "by the processor's instruction" if compiled_checksum.BY_PROCESSOR else "by tables"
