"""Small files of metadata: one line of JSON and the CRC32C of that line in hex.

Invariant: a file whose checksum does not match is never taken for an older or an empty one. Thread rule: pure functions
and one blocking read.
"""

from __future__ import annotations

import json
from pathlib import Path

from broker.store.errors import CorruptIndex
from remoting.native.checksum import crc32c


def sealed_json(value: object) -> bytes:
    """Return `value` as one line of JSON followed by a line with its checksum."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    return b"%s\n%08x\n" % (text, crc32c(text))


def open_sealed_json(path: Path) -> dict[str, object] | None:
    """Return the JSON object of a sealed file, None when there is no file. Raises CorruptIndex."""
    try:
        text, _, checksum = path.read_bytes().partition(b"\n")
    except FileNotFoundError:
        return None
    if checksum.strip() != b"%08x" % crc32c(text):
        raise CorruptIndex(path, "its checksum does not match")
    value = json.loads(text)
    assert isinstance(value, dict)
    return value
