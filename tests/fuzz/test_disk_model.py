"""The model of a disk keeps what was flushed and may lose everything else: each rule by a list of calls."""

from __future__ import annotations

import random
import struct
from pathlib import Path

from tests.fuzz.disk_model import (
    ALLOCATE,
    CLOSE,
    MKDIR,
    OPEN,
    RENAME,
    SYNC_BEGIN,
    SYNC_END,
    TRUNCATE,
    UNLINK,
    WRITE,
    Disk,
)  # fmt: skip

SEEDS = range(60)
Done = tuple[int, int, int, int, bytes, bytes]


def done(kind: int, descriptor: int = -1, at: int = 0, size: int = 0, first: bytes = b"", second: bytes = b"") -> Done:
    """One call."""
    return kind, descriptor, at, size, first, second


def after(root: Path, done: list[Done]) -> set[tuple[tuple[str, bytes], ...]]:
    """What power cuts after these calls leave, over many choices: (name, content) of the files of the directory."""
    found = set()
    for seed in SEEDS:
        disk = Disk(root)
        log = b""
        for kind, descriptor, at, size, first, second in done:
            log += struct.pack("<IiqqII", kind, descriptor, at, size, len(first), len(second)) + first + second
        assert disk.replay(log + b"half a record"[:5]) == len(done)
        disk.cut(random.Random(seed))
        files = sorted(path for path in root.rglob("*") if path.is_file())
        found.add(tuple((str(path.relative_to(root)), path.read_bytes()) for path in files))
    return found


def named(root: Path, name: str) -> bytes:
    return str(root / name).encode()


def flushed(descriptor: int) -> list[Done]:
    return [done(SYNC_BEGIN, descriptor), done(SYNC_END, descriptor)]


def made(root: Path, name: str, data: bytes) -> list[Done]:
    """A file that is on the disk with its name."""
    return [
        done(OPEN, 3, 1, 0, named(root, name)), done(WRITE, 3, 0, len(data), data), *flushed(3), done(CLOSE, 3),
        done(OPEN, 4, 0, 0, str(root).encode()), *flushed(4), done(CLOSE, 4),
    ]  # fmt: skip


def test_what_was_flushed_stays(tmp_path: Path) -> None:
    assert after(tmp_path, made(tmp_path, "a", b"data")) == {(("a", b"data"),)}


def test_a_new_name_may_be_lost_and_its_bytes_too(tmp_path: Path) -> None:
    calls = [done(OPEN, 3, 1, 0, named(tmp_path, "a")), done(WRITE, 3, 0, 2, b"hi")]
    assert after(tmp_path, calls) == {(), (("a", b""),), (("a", b"\0\0"),), (("a", b"hi"),)}


def test_a_flush_of_the_file_does_not_keep_its_name(tmp_path: Path) -> None:
    calls = [done(OPEN, 3, 1, 0, named(tmp_path, "a")), done(WRITE, 3, 0, 2, b"hi"), *flushed(3)]
    assert after(tmp_path, calls) == {(), (("a", b"hi"),)}


def test_what_is_written_during_a_flush_is_not_covered_by_it(tmp_path: Path) -> None:
    calls = [*made(tmp_path, "a", b"1"), done(OPEN, 5, 0, 0, named(tmp_path, "a"))]
    calls += [done(SYNC_BEGIN, 5), done(WRITE, 5, 0, 1, b"2"), done(SYNC_END, 5)]
    assert after(tmp_path, calls) == {(("a", b"1"),), (("a", b"2"),)}


def test_a_rename_is_atomic(tmp_path: Path) -> None:
    calls = made(tmp_path, "old", b"1") + made(tmp_path, "new", b"2")
    calls.append(done(RENAME, first=named(tmp_path, "new"), second=named(tmp_path, "old")))
    assert after(tmp_path, calls) == {(("new", b"2"), ("old", b"1")), (("old", b"2"),)}


def test_sectors_are_lost_one_by_one(tmp_path: Path) -> None:
    calls = [*made(tmp_path, "a", bytes(1024)), done(OPEN, 5, 0, 0, named(tmp_path, "a"))]
    calls.append(done(WRITE, 5, 0, 1024, b"x" * 1024))
    parts = {(content[:512], content[512:]) for ((_, content),) in after(tmp_path, calls)}
    assert parts == {(a, b) for a in (bytes(512), b"x" * 512) for b in (bytes(512), b"x" * 512)}


def test_deletions_may_be_undone_in_any_order(tmp_path: Path) -> None:
    calls = made(tmp_path, "a", b"1") + made(tmp_path, "b", b"2")
    calls += [done(UNLINK, first=named(tmp_path, "a")), done(UNLINK, first=named(tmp_path, "b"))]
    assert len(after(tmp_path, calls)) == 4


def test_truncated_bytes_may_return_until_the_truncation_is_flushed(tmp_path: Path) -> None:
    calls = [*made(tmp_path, "a", b"12"), done(OPEN, 5, 0, 0, named(tmp_path, "a")), done(TRUNCATE, 5, 0, 1)]
    assert after(tmp_path, calls) >= {(("a", b"12"),), (("a", b"1"),)}
    assert after(tmp_path, calls + flushed(5)) == {(("a", b"1"),)}


def test_reserved_space_is_zeros(tmp_path: Path) -> None:
    calls = [
        *made(tmp_path, "a", b"1"),
        done(OPEN, 5, 0, 0, named(tmp_path, "a")),
        done(ALLOCATE, 5, 0, 3),
        *flushed(5),
    ]
    assert after(tmp_path, calls) == {(("a", b"1\0\0"),)}


def test_a_directory_goes_with_everything_in_it(tmp_path: Path) -> None:
    inner = str(tmp_path / "d").encode()
    calls = [done(MKDIR, first=inner), *made(tmp_path / "d", "a", b"1")]
    assert after(tmp_path, calls) == {(), (("d/a", b"1"),)}


def test_after_a_kill_the_machine_still_has_everything_to_flush(tmp_path: Path) -> None:
    """The next process sees it; only its flush keeps it."""
    disk = Disk(tmp_path)
    log = b""
    (tmp_path / "a").write_bytes(b"1")
    for kind, descriptor, at, size, first, second in [
        done(OPEN, 3, 1, 0, named(tmp_path, "a")), done(WRITE, 3, 0, 1, b"1"), done(SYNC_BEGIN, 3)
    ]:  # fmt: skip
        log += struct.pack("<IiqqII", kind, descriptor, at, size, len(first), len(second)) + first + second
    disk.replay(log)
    disk.killed()
    left = set()
    for seed in SEEDS:
        other = Disk(tmp_path)
        other.replay(log)
        other.killed()
        other.cut(random.Random(seed))
        left.add(tuple(path.name for path in tmp_path.iterdir()))
    assert left == {(), ("a",)}


def test_a_damaged_byte_is_on_the_disk_and_survives_the_next_power_cut(tmp_path: Path) -> None:
    """It is not a write of the process: nothing restores the former byte."""
    disk = Disk(tmp_path)
    log = b""
    for kind, descriptor, at, size, first, second in made(tmp_path, "file", b"abc"):
        log += struct.pack("<IiqqII", kind, descriptor, at, size, len(first), len(second)) + first + second
    disk.replay(log)
    disk.cut(random.Random(1))
    disk.flip(tmp_path / "file", 1, 3)
    assert (tmp_path / "file").read_bytes() == b"aac"
    disk.cut(random.Random(2))
    assert (tmp_path / "file").read_bytes() == b"aac"
