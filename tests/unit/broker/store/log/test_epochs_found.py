"""What a start makes of the EPOCHS file."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.store.log.epoch_file import load_epochs, save_epochs
from remoting.protocol.errors import LocalMisuse
from tests.sim.replicas import ReplicaBench
from tests.sim.stores import message


def grouped(tmp_path: Path) -> ReplicaBench:
    """A closed store with records of epochs 2 and 5, and an epoch 7 without any."""
    bench = ReplicaBench(tmp_path / "data", epoch=2)
    queue = bench.store.queues.open(b"q")
    bench.flush()
    bench.reopen_as(epoch=5)
    bench.store.append(message([queue], b"x"))
    bench.flush()
    bench.reopen_as(epoch=7)
    bench.close()
    return bench


@pytest.mark.parametrize("damage", ["gone", "flipped", "short", "old"])
def test_a_file_that_does_not_tell_all_is_made_anew(tmp_path: Path, damage: str) -> None:
    """Gone, unreadable or older than the log: the records tell, and the checkpoint tells of a start that wrote none."""
    bench = grouped(tmp_path)
    path = bench.directory / "EPOCHS"
    before = load_epochs(bench.directory)
    assert before is not None
    if damage == "gone":
        path.unlink()
    elif damage == "flipped":
        path.write_bytes(path.read_bytes().replace(b"5", b"6", 1))
    elif damage == "short":
        path.write_bytes(b"")
    else:
        save_epochs(bench.directory, before[:1])
    store = bench.open(role="replica")
    assert store.replica.epochs == before == load_epochs(bench.directory)
    bench.close()


def test_entries_behind_the_end_are_dropped(tmp_path: Path) -> None:
    """Durable before its first byte: a crash may leave an entry of an epoch whose log never got so far."""
    bench = grouped(tmp_path)
    epochs = load_epochs(bench.directory)
    assert epochs is not None
    save_epochs(bench.directory, [*epochs, (9, epochs[-1][1] + 8), (11, 1 << 40)])
    store = bench.open(role="replica")
    assert store.replica.epochs == epochs
    store = bench.reopen_as(epoch=8)
    assert store.replica.epochs == [*epochs[:-1], (8, store.end_position)]
    bench.close()


def test_an_epoch_is_used_once(tmp_path: Path) -> None:
    """Not below and not the same as any the log has seen, one without records too."""
    bench = grouped(tmp_path)
    for epoch in (1, 5, 6, 7):
        with pytest.raises(LocalMisuse, match="has seen epoch 7"):
            bench.open(epoch=epoch)
    assert bench.open(epoch=8).epoch == 8
    bench.close()


def test_a_node_by_itself_does_not_look_through_its_log(tmp_path: Path) -> None:
    """Without the file it goes on without; an empty directory gets one, and each start that wrote an entry."""
    bench = ReplicaBench(tmp_path / "data")
    assert load_epochs(bench.directory) == [(1, 0)]
    bench.reopen_as()
    assert load_epochs(bench.directory) == [(2, 0)]
    bench.store.queues.open(b"q")
    bench.settle()
    end = bench.store.end_position
    bench.reopen_as()
    assert load_epochs(bench.directory) == [(2, 0), (3, end)]
    bench.close()
    (bench.directory / "EPOCHS").write_bytes(b"rubbish")
    bench.open()
    assert load_epochs(bench.directory) is None
    assert bench.store.epoch == 4
    bench.close()
