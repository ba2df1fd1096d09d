"""What a store is made of: opened whole or not at all, closed once."""

from __future__ import annotations

from pathlib import Path

import pytest

from remoting.protocol.errors import LocalMisuse
from runtime.files import DirectoryLocked
from tests.sim.replicas import ReplicaBench


def test_a_failed_opening_leaves_the_directory_free(tmp_path: Path) -> None:
    """Refused for its epoch, the same directory opens in another role at once: lock and threads were given back."""
    bench = ReplicaBench(tmp_path / "data", epoch=4)
    bench.close()
    with pytest.raises(LocalMisuse):
        bench.open(epoch=4)
    bench.open(role="replica")
    with pytest.raises(DirectoryLocked):
        ReplicaBench(tmp_path / "data", role="replica")
    bench.close()
    bench.close()


def test_the_epoch_is_that_of_the_last_entry(tmp_path: Path) -> None:
    """0 for the empty log of a replica, one more per start of a node by itself, the given one of a master."""
    bench = ReplicaBench(tmp_path / "data", role="replica")
    assert (bench.store.epoch, bench.store.replica.epochs) == (0, [])
    for role, epoch in (({}, 1), ({}, 2), ({"epoch": 8}, 8), ({}, 9), ({"role": "replica"}, 9)):
        assert bench.reopen_as(**role).epoch == epoch
    bench.close()
