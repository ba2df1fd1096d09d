"""Times and sizes as people type them."""

from __future__ import annotations

import pytest

from lightmq.cli.admin.topics import duration_ms, size_bytes
from lightmq.cli.outcome import CommandFailed


@pytest.mark.parametrize(
    ("text", "ms"), [("7d", 604_800_000), ("90 s", 90_000), ("12H", 43_200_000), ("forever", 0), ("5", 5)]
)
def test_durations(text: str, ms: int) -> None:
    assert duration_ms(text) == ms


@pytest.mark.parametrize(("text", "size"), [("500MB", 500_000_000), ("2GiB", 2**31), ("unlimited", 0), ("7", 7)])
def test_sizes(text: str, size: int) -> None:
    assert size_bytes(text) == size


@pytest.mark.parametrize("text", ["", "d", "-7d", "7 days", "1.5h", "7x"])
def test_invalid_amounts_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(CommandFailed, match="7d"):
        duration_ms(text)
    with pytest.raises(CommandFailed, match="500MB"):
        size_bytes(text)
