"""What stops a store: the first cause is everybody's, a full disk passes."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.store.errors import StoreFailed, StoreFull
from broker.store.log.failure import Failure
from tests.sim.stores import StoreBench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[StoreBench]:
    made = StoreBench(tmp_path / "data")
    yield made
    made.close()


def test_a_full_disk_refuses_all_but_what_makes_room(bench: StoreBench) -> None:
    failure: Failure = bench.store._parts.failure
    failure.check()
    assert isinstance(failure.write_failed(OSError(errno.ENOSPC, "full")), StoreFull)
    assert (failure.error, isinstance(failure.refusal, StoreFull)) == (None, True)
    failure.check(essential=True)
    with pytest.raises(StoreFull):
        failure.check()


def test_the_first_failure_is_the_one_everybody_hears_of(bench: StoreBench) -> None:
    """Who waits hears it, who asks later too, and closing does not hide it."""
    store, heard = bench.store, []
    store.when_confirmed(store.end_position + 1, heard.append)
    failure = store._parts.failure
    failure.flush_failed(OSError(errno.EIO, "first"))
    failure.flush_failed(OSError(errno.EIO, "second"))
    failure.end(StoreFailed("closed"))
    assert "first" in str(failure.error)
    assert store.refusal is failure.error
    assert heard == [failure.error]
    with pytest.raises(StoreFailed, match="first"):
        failure.check(essential=True)
