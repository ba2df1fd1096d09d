"""The disk that forgets: what was made durable is there after a power cut, everything else by chance."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.files import atomic_replace, fsync_dir
from tests.sim.cluster.platter import Disks, Platter, PowerLost


@pytest.fixture
def platter() -> Iterator[Platter]:
    """The disk of one machine."""
    with Disks() as disks:
        yield disks.add("b1", random.Random(1))


def written(path: Path, content: bytes, *, durable: bool) -> None:
    """Write a file, and make its content durable."""
    path.write_bytes(content)
    if durable:
        with path.open("rb") as file:
            os.fsync(file.fileno())


def content(platter: Platter) -> dict[str, bytes]:
    """What is in the directory."""
    return {each.name: each.read_bytes() for each in platter.directory.iterdir()}


@pytest.mark.parametrize(("mood", "left"), [("lose", b"before" + bytes(94)), ("keep", b"after" + bytes(95))])
def test_what_was_written_since_is_lost_or_not(platter, mood, left) -> None:
    """A content that was made durable comes back, under a name that was."""
    written(platter.directory / "a", b"before" + bytes(94), durable=True)
    fsync_dir(platter.directory)
    written(platter.directory / "a", b"after" + bytes(95), durable=False)
    written(platter.directory / "b", b"new", durable=True)
    platter.cut_power(mood)
    assert content(platter) == {"a": left} | ({"b": b"new"} if mood == "keep" else {})


def test_of_what_was_written_since_some_sectors_are_there(platter) -> None:
    """Each for itself; the file is what it was before where none is."""
    seen = set()
    for _ in range(20):
        written(platter.directory / "a", b"0" * 640, durable=True)
        fsync_dir(platter.directory)
        written(platter.directory / "a", b"1" * 640, durable=False)
        platter.cut_power("mixed")
        found = content(platter)["a"]
        assert {found[at : at + 64] for at in range(0, 640, 64)} <= {b"0" * 64, b"1" * 64}
        seen.add(found)
    assert len(seen) > 10


def test_a_file_that_takes_another_ones_place_is_there_as_either(platter) -> None:
    """Whole, and a renamed one has one of its names."""
    seen = set()
    atomic_replace(platter.directory / "a", b"old")
    for _ in range(40):
        written(platter.directory / ".a.tmp", b"new", durable=True)
        (platter.directory / ".a.tmp").replace(platter.directory / "a")
        platter.cut_power("mixed")
        found = content(platter)
        assert found in ({"a": b"old"}, {"a": b"new"}), found
        seen.add(found["a"])
        atomic_replace(platter.directory / "a", b"old")
        platter.cut_power("lose")
        assert content(platter) == {"a": b"old"}
    assert seen == {b"old", b"new"}


def test_directories_are_as_durable_as_their_names(platter) -> None:
    """What is in one that the disk does not know is gone with it."""
    inner = platter.directory / "log"
    inner.mkdir()
    written(inner / "00000000000000000000", b"abcdef", durable=True)
    fsync_dir(inner)
    assert platter.durable("log", 0, 6) == b""
    fsync_dir(platter.directory)
    assert platter.durable("log", 2, 5) == b"cde"
    platter.cut_power("lose")
    assert platter.durable("log", 0, 9) == b"abcdef"
    assert (platter.directory / "log" / "00000000000000000000").read_bytes() == b"abcdef"
    platter.wipe()
    assert content(platter) == {}
    assert platter.durable("log", 0, 9) == b""


def test_the_power_goes_in_the_middle_of_something(platter) -> None:
    """What the call was to make durable is not; what the process does afterwards is done to the former directory."""
    written(platter.directory / "a", b"before", durable=True)
    fsync_dir(platter.directory)
    former = platter.directory
    platter.fuse = 2
    with pytest.raises(PowerLost):
        atomic_replace(platter.directory / "a", b"after.")
    assert content(platter)["a"] in (b"before", b"after.")
    atomic_replace(former / "b", b"too late")
    assert "b" not in content(platter)
    platter.cut_power("keep")
    assert not former.exists()


def test_the_machines_own_calls_are_back_afterwards() -> None:
    """And nothing is left of the disks."""
    calls = os.fsync, os.fdatasync
    with Disks() as disks:
        disks.add("b1", random.Random(1))
        assert os.fsync is not calls[0]
    assert (os.fsync, os.fdatasync) == calls
    assert not disks.room.exists()
