"""The ring of the newest entries, against a list."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.store.index.tail import Tail, read_durable
from remoting.native import core as native
from remoting.native.contracts import NEXT
from remoting.native.reference import encoder as pure_ring


def add(tail: Tail, model: dict[int, list[int]], queues: list[int], position: int) -> None:
    offsets = []
    for queue in queues:
        offsets.append(len(model.setdefault(queue, [])))
        model[queue].append(position + len(offsets))
    positions = [position + n for n in range(1, len(queues) + 1)]
    entries = native.core.make_block(
        queues, offsets, positions, [8] * len(queues), [7] * len(queues), [1] * len(queues)
    )
    assert tail.ring.claim(entries, 0, 1 << 20) == len(queues)
    tail.append(entries)
    tail.publish(position + 1000, 0)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.lists(st.integers(0, 3), max_size=60), st.booleans()), max_size=12),
    st.sampled_from([0, 192]),
)
def test_like_a_list(steps, walk_max: int) -> None:
    """Appends that wrap around, releases, reads by chain and by scan."""
    with tempfile.TemporaryDirectory() as folder:
        before, pure_ring.WALK_MAX = pure_ring.WALK_MAX, walk_max
        try:
            tail, model = Tail(Path(folder) / "tail", 64), {}
            released = dict.fromkeys(range(4), 0)
            for n, (queues, release) in enumerate(steps):
                if len(queues) > tail.room or release:
                    tail.release(tail.count)
                    released = {queue: len(model.get(queue, ())) for queue in range(4)}
                add(tail, model, queues, n * 1000)
                for queue in range(4):
                    entries = model.get(queue, [])
                    assert tail.row_column(NEXT)[queue] == len(entries)
                    for offset in range(released[queue], len(entries) + 1):
                        got = tail.find(queue, offset, 5).positions.tolist()
                        assert got == entries[offset : offset + 5]
            tail.close()
        finally:
            pure_ring.WALK_MAX = before


def test_grows_in_place(tmp_path: Path) -> None:
    """More queues: the existing rows and entries stay."""
    tail, model = Tail(tmp_path / "tail", 64), {}
    add(tail, model, [1, 2, 1], 0)
    tail.grow(100_000)
    add(tail, model, [99_999, 1], 5000)
    assert tail.find(1, 0, 9).positions.tolist() == model[1]
    assert tail.find(99_999, 0, 9).positions.tolist() == model[99_999]
    assert len(tail.row_column(NEXT)) >= 100_000
    tail.close()


def test_the_durable_position_survives(tmp_path: Path) -> None:
    """The next start reads what was proved; a damaged file proves nothing."""
    path = tmp_path / "tail"
    assert read_durable(path) == 0
    tail = Tail(path, 64)
    assert read_durable(path) == 0
    tail.publish_confirm(900, 800)
    tail.close()
    assert read_durable(path) == 800
    data = bytearray(path.read_bytes())
    data[97] ^= 1
    path.write_bytes(data)
    assert read_durable(path) == 0
    path.write_bytes(b"LMQ")
    assert read_durable(path) == 0


def test_a_full_disk_gives_the_former_tails_space_to_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart needs no more space than before; any other failure is raised and leaves the former file."""
    path = tmp_path / "tail"
    Tail(path, 16).close()
    allocate, seen = os.posix_fallocate, []

    def full(descriptor: int, offset: int, length: int) -> None:
        seen.append(path.exists())
        if path.exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        allocate(descriptor, offset, length)

    monkeypatch.setattr(os, "posix_fallocate", full)
    Tail(path, 16).close()
    assert seen == [True, False]
    assert path.exists()

    monkeypatch.setattr(os, "fstatvfs", lambda _descriptor: SimpleNamespace(f_bavail=0, f_frsize=4096))
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        Tail(path, 1 << 16)
    assert path.exists(), "kept where its space would not be enough"

    def broken(_descriptor: int, _offset: int, _length: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "posix_fallocate", broken)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        Tail(path, 16)
    assert path.exists()
