"""Which start of the machine this is: what a killed process had written is still there, unless the machine went too.

Invariant: two calls that give the same text, not empty, ran without the machine having been off in between. Blocks.
"""

from __future__ import annotations

from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def machine_boot(source: Path = BOOT_ID) -> str:
    """The kernel's id of this start; empty where it tells none, so that nothing is taken for granted."""
    try:
        return source.read_text().strip()
    except OSError:
        return ""
