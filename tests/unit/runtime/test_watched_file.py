"""A watched file: in force when valid and stable, kept when the new one is invalid."""

from __future__ import annotations

from pathlib import Path

import pytest

from remoting.protocol.errors import LightMQError
from runtime.files import WatchedFile, fingerprint


class Use:
    """Accepts numbers; everything else is invalid."""

    def __init__(self, path: Path) -> None:
        self.applied: list[int] = []
        self.failed: list[str] = []
        self.during = lambda: None
        self.file = WatchedFile(
            path, self.load, applied=self.applied.append, failed=lambda error: self.failed.append(str(error))
        )

    def load(self, path: Path) -> int:
        try:
            text = path.read_text()
        except OSError as error:
            raise LightMQError(str(error.strerror)) from error
        self.during()
        if not text.strip().isdigit():
            raise LightMQError(f"no number: {text}")
        return int(text)


def write(path: Path, text: str) -> None:
    """Replace, so that the fingerprint differs even within one tick of the clock."""
    fresh = path.with_name("fresh")
    fresh.write_text(text)
    fresh.replace(path)


async def test_a_change_takes_effect_once_it_is_stable(tmp_path: Path) -> None:
    """Two polls see the same file before it is read; an unchanged one is not read again."""
    path = tmp_path / "file"
    path.write_text("1")
    use = Use(path)
    assert use.file.first() == 1
    await use.file.refresh()
    write(path, "2")
    await use.file.refresh()
    assert use.applied == []
    write(path, "3")
    await use.file.refresh()
    assert use.applied == []
    await use.file.refresh()
    await use.file.refresh()
    assert use.applied == [3]


async def test_a_bad_file_changes_nothing_and_is_tried_again(tmp_path: Path) -> None:
    """Logged once, and in force as soon as it is valid."""
    path = tmp_path / "file"
    path.write_text("1")
    use = Use(path)
    use.file.first()
    write(path, "what")
    for _ in range(4):
        await use.file.refresh()
    assert (use.applied, use.failed) == ([], ["no number: what"])
    path.unlink()
    for _ in range(4):
        await use.file.refresh()
    assert use.failed[1:] == ["No such file or directory"]
    write(path, "5")
    await use.file.refresh()
    await use.file.refresh()
    assert use.applied == [5]


async def test_on_demand_it_is_read_at_once(tmp_path: Path) -> None:
    """Changed or not; and a problem is returned to the caller again."""
    path = tmp_path / "file"
    path.write_text("1")
    use = Use(path)
    use.file.first()
    await use.file.refresh(now=True)
    assert use.applied == [1]
    write(path, "what")
    await use.file.refresh(now=True)
    await use.file.refresh(now=True)
    assert len(use.failed) == 2


async def test_a_file_that_changes_while_it_is_read_is_left_to_the_next_poll(tmp_path: Path) -> None:
    """What was read may be half of each."""
    path = tmp_path / "file"
    path.write_text("1")
    use = Use(path)
    use.file.first()
    use.during = lambda: write(path, "3")
    await use.file.refresh(now=True)
    assert use.applied == []
    use.during = lambda: None
    await use.file.refresh()
    await use.file.refresh()
    assert use.applied == [3]


def test_a_bad_first_file_is_left_to_the_caller(tmp_path: Path) -> None:
    """It decides whether to continue without."""
    with pytest.raises(LightMQError):
        Use(tmp_path / "none").file.first()


def test_the_fingerprint_changes(tmp_path: Path) -> None:
    """With other content, other rights, or without a file."""
    path = tmp_path / "watched"
    assert fingerprint(path) is None
    path.write_text("one")
    path.chmod(0o600)
    before = fingerprint(path)
    path.write_text("other")
    after = fingerprint(path)
    assert after != before
    path.chmod(0o644)
    assert fingerprint(path) != after
