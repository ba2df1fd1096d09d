"""What holds for every test: servers that tests start reserve little disk, in this process and in children."""

from __future__ import annotations

import os

SEGMENT_SIZE_BYTES = 32 * 1024 * 1024
"""A log file of the default size for each of some hundred short-lived servers would fill a disk."""
RESERVED = {
    "LIGHTMQ_BROKER__STORE__SEGMENT_SIZE_BYTES": SEGMENT_SIZE_BYTES,
}

for _name, _value in RESERVED.items():
    os.environ.setdefault(_name, str(_value))
