"""What the tail file of a process that died still says."""

from __future__ import annotations

import shutil
from pathlib import Path

from broker.store.index.former_tail import FormerTail
from remoting.native.contracts import NEXT
from tests.sim.stores import StoreBench, message


def test_confirmed_ends_outlive_the_process(tmp_path: Path) -> None:
    """Also when another file has taken the name."""
    bench = StoreBench(tmp_path / "data")
    first, second = bench.store.queues.open_all([b"a", b"b"])
    bench.store.append(*[message([first], b"x") for _ in range(5)])
    bench.settle()
    path = tmp_path / "tail"
    shutil.copy(tmp_path / "data" / "index" / "tail", path)
    following = bench.store._parts.opened.index.tail.queue_rows[:2, NEXT].copy()
    bench.close()
    former = FormerTail(path)
    path.unlink()
    assert former.confirmed_beyond(following) == []
    following[first] = 2
    assert former.confirmed_beyond(following) == [(first, 5)]
    following[:] = 0
    assert former.confirmed_beyond(following) == [(first, 5)]
    assert second == 1
    former.close()
    assert former.confirmed_beyond(following) == []


def test_rubbish_says_nothing(tmp_path: Path) -> None:
    """No file, an empty one, one of another layout, one that is cut."""
    import numpy as np

    path = tmp_path / "tail"
    none = np.zeros(4, np.int64)
    assert FormerTail(path).confirmed_beyond(none) == []
    for data in (b"", b"x" * 100, b"x" * 10_000, b"LMQTAIL2" + b"\xff" * 5_000):
        path.write_bytes(data)
        assert FormerTail(path).confirmed_beyond(none) == []
