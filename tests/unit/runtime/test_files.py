from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from runtime import files
from runtime.files import DirectoryLock, DirectoryLocked, atomic_replace, atomic_write, fsync_dir, make_directory


def test_replace_writes_whole_content_with_the_mode_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    old_mask = os.umask(0)
    try:
        atomic_replace(path, b"one", mode=0o600)
        atomic_replace(path, b"two" * 100_000, mode=0o600)
    finally:
        os.umask(old_mask)
    assert path.read_bytes() == b"two" * 100_000
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["secret"]


def test_a_failed_replacement_leaves_the_old_content_and_no_leftovers(tmp_path: Path) -> None:
    path = tmp_path / "directory"
    path.mkdir()
    (path / "file").write_bytes(b"x")
    with pytest.raises(OSError):
        atomic_replace(path, b"data")
    assert [entry.name for entry in tmp_path.iterdir()] == ["directory"]
    with pytest.raises(FileNotFoundError):
        atomic_replace(tmp_path / "nowhere" / "file", b"")


def test_fsync_of_a_directory(tmp_path: Path) -> None:
    fsync_dir(tmp_path)
    with pytest.raises(FileNotFoundError):
        fsync_dir(tmp_path / "nowhere")


def test_every_name_above_a_new_directory_is_made_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each parent got its new entry, and gets it again at the next start: the first may have been killed before."""
    leaf = tmp_path / "a" / "b" / "data"
    synced: list[Path] = []
    monkeypatch.setattr(files, "fsync_dir", lambda path: synced.append(path) if any(path.iterdir()) else None)
    for _ in range(2):
        synced.clear()
        monkeypatch.setattr(files, "_DURABLE", set())  # of another process
        make_directory(leaf, mode=0o700)
        assert synced[:3] == [leaf.parent, leaf.parent.parent, tmp_path]
        assert Path("/") in synced
    assert stat.S_IMODE(leaf.stat().st_mode) == 0o700
    synced.clear()
    make_directory(leaf / "log", inner=True)
    assert synced == [leaf]
    (leaf / "file").touch()
    with pytest.raises(FileExistsError):
        make_directory(leaf / "file")


def test_missing_parents_are_created_private(tmp_path: Path) -> None:
    """Under any umask: a user who may write there could put another directory in its place."""
    before = os.umask(0)
    try:
        make_directory(tmp_path / "a" / "b" / "data")
    finally:
        os.umask(before)
    assert [stat.S_IMODE((tmp_path / each).stat().st_mode) for each in ("a", "a/b", "a/b/data")] == [
        0o755,
        0o755,
        0o700,
    ]


def test_an_unreadable_parent_is_no_obstacle_once_the_directory_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another failure is one: the name may be lost."""

    def refuse(_: Path, number: int = errno.EACCES) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files, "fsync_dir", refuse)
    make_directory(tmp_path)
    with pytest.raises(PermissionError):
        make_directory(tmp_path / "new")
    monkeypatch.setattr(files, "fsync_dir", lambda path: refuse(path, errno.EIO))
    with pytest.raises(OSError, match="Input/output"):
        make_directory(tmp_path)


def test_a_locked_directory_names_its_owner_and_can_be_taken_after_close(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    with pytest.raises(DirectoryLocked, match=str(os.getpid())) as raised:
        DirectoryLock(tmp_path)
    assert raised.value.owner_pid == os.getpid()
    lock.close()
    lock.close()
    with DirectoryLock(tmp_path) as again:
        assert again.directory == tmp_path


def test_an_owner_without_a_number_is_called_another_process(tmp_path: Path) -> None:
    assert "another process" in str(DirectoryLocked(tmp_path, 0))


def test_atomic_write_takes_pieces(tmp_path: Path) -> None:
    """A failure in the middle of the pieces leaves the old content."""
    path = tmp_path / "file"
    atomic_write(path, (b"a", b"", b"b" * 10), mode=0o600)
    assert path.read_bytes() == b"a" + b"b" * 10

    def broken():
        yield b"new"
        raise ValueError

    with pytest.raises(ValueError):
        atomic_write(path, broken())
    assert path.read_bytes() == b"a" + b"b" * 10
    assert list(tmp_path.iterdir()) == [path]


def test_the_names_of_a_directory_are_flushed_once_in_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And again when it was removed meanwhile."""
    flushed: list[Path] = []
    monkeypatch.setattr(files, "fsync_dir", flushed.append)
    wanted = tmp_path / "data"
    make_directory(wanted)
    count = len(flushed)
    assert flushed[0] == tmp_path
    make_directory(wanted)
    assert len(flushed) == count
    wanted.rmdir()
    make_directory(wanted)
    assert len(flushed) == 2 * count


def test_a_lock_that_is_taken_again_names_its_owner(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("123456789\n")
    for _ in range(2):
        with DirectoryLock(tmp_path), pytest.raises(DirectoryLocked) as refused:
            DirectoryLock(tmp_path)
        assert refused.value.owner_pid == os.getpid()
