"""Opening the parts of a data directory for reading."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.store.inspection.directory import NoDataDirectory, locate, open_directory, owner_of
from runtime.files import DirectoryLock


def test_parts_and_durable_position(directory: Path) -> None:
    """A cleanly closed store is durable to its end and has no owner."""
    found = open_directory(directory)
    assert found.owner_pid is None
    assert found.checkpoint is not None
    assert found.checkpoint.clean
    assert found.durable == found.manifest.end_position == found.checkpoint.position
    assert not found.unreadable
    assert len(found.runs) == len(found.manifest.runs) > 0


def test_the_owner_is_named_and_not_disturbed(directory: Path) -> None:
    """Inspecting takes no lasting lock."""
    assert owner_of(directory) is None
    with DirectoryLock(directory):
        assert (owner_of(directory) or 0) > 0
    DirectoryLock(directory).close()
    (directory / "lock").unlink()
    assert owner_of(directory) is None


def test_locate(directory: Path, tmp_path: Path) -> None:
    """The broker's part of an installation is found too."""
    assert locate(directory) == directory
    directory.rename(tmp_path / "broker")
    assert locate(tmp_path) == tmp_path / "broker"
    with pytest.raises(NoDataDirectory):
        locate(tmp_path / "elsewhere")


def test_unreadable_files_are_listed(directory: Path) -> None:
    """A file that the log can replace does not stop an inspection."""
    for path in (directory / "CHECKPOINT", directory / "index" / "MANIFEST", directory / "state" / "SNAPSHOT"):
        data = bytearray(path.read_bytes())
        data[3] ^= 1
        path.write_bytes(data)
    assert len(open_directory(directory).unreadable) == 3
