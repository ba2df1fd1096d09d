"""Errors name the file, the position and what to do."""

from __future__ import annotations

from pathlib import Path

from broker.store.errors import CorruptIndex, CorruptLog, StoreError
from remoting.protocol.errors import LightMQError, LocalMisuse


def test_corruption_names_its_place() -> None:
    """File, position, reason, and that nothing was cut."""
    error = CorruptLog(Path("/d/log/00000000000000000000"), 4096, "checksum does not match")
    text = str(error)
    parts = ("/d/log/00000000000000000000", "4096", "checksum", "nothing was cut", "replica")
    assert all(part in text for part in parts)
    assert str(CorruptIndex(Path("run-1"), "bad")) == "run-1: bad"


def test_families() -> None:
    """What the store refuses is no misuse of its callers."""
    assert not issubclass(StoreError, LocalMisuse)
    assert issubclass(StoreError, LightMQError)
