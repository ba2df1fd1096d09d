"""A store read from another process while its writer runs at full speed, merges, expires, grows, dies and returns.

`LIGHTMQ_ATTACHED_MESSAGES` and `LIGHTMQ_ATTACHED_LIVES` make the runs longer than the quick suite has time for.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.store.attached.store import AttachedStore, in_order
from broker.store.errors import Unsettled
from tests.support.attached_follower import Follower

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not in_order(), reason="readers need a processor that keeps loads and stores in order"),
]
ROOT = Path(__file__).resolve().parents[2]
MESSAGES = int(os.environ.get("LIGHTMQ_ATTACHED_MESSAGES", "200000"))
LIVES = int(os.environ.get("LIGHTMQ_ATTACHED_LIVES", "8"))
SMALL: dict[str, Any] = {
    "segment_size_bytes": 4 * 1024 * 1024,
    "index_tail_entries": 8192,
    "index_merge_runs": 3,
    "retention_ms": 0,
    "free_space_bytes_min": 0,
    "ballast_size_bytes": 0,
    "snapshot_log_bytes": 16 * 1024 * 1024,
}
LIGHT = 3


class Writer:
    """A writer process; `hello` has its queues and where it begins."""

    def __init__(self, directory: Path, **orders: Any) -> None:
        command = [sys.executable, "-m", "tests.support.attached_writer", str(directory), json.dumps(orders)]
        with directory.with_suffix(".log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT)
        self.hello: dict[str, Any] = self.said()

    def said(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the writer has failed, see its log"
        words: dict[str, Any] = json.loads(line)
        return words

    def end(self) -> None:
        """kill -9, if it is still running."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def writing(directory: Path, **orders: Any) -> Iterator[Writer]:
    writer = Writer(directory, **orders)
    try:
        yield writer
    finally:
        writer.end()


def files(directory: Path) -> dict[str, tuple[int, int, int]]:
    """Every file with inode, size and modification time."""
    found = {}
    for path in sorted(directory.rglob("*")):
        stat = path.stat()
        found[str(path)] = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
    return found


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_everything_is_read_as_it_was_written(tmp_path: Path, flush: str) -> None:
    """Two queues from their beginning, while runs are created and merged and the rows of the tail grow."""
    settings = SMALL | {"flush": flush}
    with writing(tmp_path / "data", settings=settings, stop_at=MESSAGES, new_queues_each=200) as writer:
        store = AttachedStore(tmp_path / "data")
        parent = Follower(store, writer.hello["parent"])
        light = Follower(store, writer.hello["lights"][LIGHT], light=LIGHT)
        while parent.offset < MESSAGES:
            if not parent.step() + light.step():
                time.sleep(0.0005)
        assert writer.said() == {"done": MESSAGES}
        while light.step():
            pass
    assert (parent.records, parent.expired) == (MESSAGES, 0)
    assert light.records == len(range(LIGHT, MESSAGES, 7))
    assert store.attachments == 1
    before = files(tmp_path)
    again = AttachedStore(tmp_path / "data")
    assert again.bounds(writer.hello["parent"]) == (0, MESSAGES)
    again.read_range(writer.hello["parent"], MESSAGES // 2, 1000, 100_000, MESSAGES)
    again.let_go()
    again.close()
    assert files(tmp_path) == before, "reading changed something"
    store.close()


def test_retention_is_reported_and_its_space_is_released(tmp_path: Path) -> None:
    """A follower slower than retention jumps to what is left, and no deleted file stays mapped."""
    settings = SMALL | {"flush": "async", "retention_size_bytes": 12 * 1024 * 1024}
    with writing(tmp_path / "data", settings=settings, stop_at=MESSAGES) as writer:
        store = AttachedStore(tmp_path / "data")
        parent = Follower(store, writer.hello["parent"])
        slow = Follower(store, writer.hello["lights"][LIGHT], light=LIGHT)
        while parent.offset < MESSAGES:
            parent.step()
            if slow.offset < 10:
                slow.step(end_offset=10)
        assert writer.said() == {"done": MESSAGES}
        low, high = store.bounds(writer.hello["parent"])
        assert 0 < low < high == MESSAGES
        while slow.step():
            pass
        assert slow.expired > 0
    store.let_go()
    maps = Path("/proc/self/maps").read_text().splitlines()
    assert not [line for line in maps if str(tmp_path) in line and "deleted" in line]
    store.close()


def test_the_writer_is_killed_again_and_again(tmp_path: Path) -> None:
    """kill -9 at any moment: what was read before stays true, and reading continues in the next life."""
    chance = random.Random(7)
    store: AttachedStore | None = None
    parent: Follower | None = None
    for life in range(LIVES):
        flush = "sync" if life % 2 else "async"
        orders = {"settings": SMALL | {"flush": flush}, "batch": chance.choice([1, 30, 400]), "new_queues_each": 50}
        with writing(tmp_path / "data", **orders) as writer:
            if store is None:
                store = AttachedStore(tmp_path / "data")
                parent = Follower(store, writer.hello["parent"])
            assert parent is not None
            assert writer.hello["next"] >= parent.offset, "what was shown has disappeared"
            stop = time.monotonic() + chance.uniform(0.1, 0.6)
            goal = parent.offset + 100
            while time.monotonic() < stop or parent.offset < goal:
                parent.step()
        while parent.step():
            pass
        assert store.attachments == life + 1
    assert store is not None
    assert parent is not None
    fresh = AttachedStore(tmp_path / "data")
    again = Follower(fresh, 0)
    while again.offset < parent.offset:
        assert again.step(end_offset=parent.offset)
    assert (again.records, again.expired, parent.expired) == (parent.offset, 0, 0)
    fresh.close()
    store.close()


def test_a_directory_that_was_never_written_is_refused(tmp_path: Path) -> None:
    """Nothing is created in an empty one."""
    with pytest.raises(Unsettled, match="no writer"):
        AttachedStore(tmp_path / "data")
    assert list(tmp_path.iterdir()) == []
