"""Roles, and the epoch that wrote each part of the log, on the disk and from the records."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.store.errors import CorruptIndex
from broker.store.log.epoch_file import (
    Role,
    below,
    epoch_at,
    epochs_of,
    load_epochs,
    recovered,
    role_of,
    save_epochs,
    with_epoch,
)
from broker.store.log.metadata import sealed_json
from remoting.protocol.errors import LocalMisuse
from tests.sim.replicas import ReplicaBench
from tests.sim.stores import message


def test_saved_entries_are_loaded(tmp_path: Path) -> None:
    """No file is None, an empty list is one."""
    assert load_epochs(tmp_path) is None
    for epochs in ([], [(1, 0)], [(1, 0), (5, 96), (6, 2**40)]):
        save_epochs(tmp_path, epochs)
        assert load_epochs(tmp_path) == epochs


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"epochs": 3},
        {"epochs": [[1]]},
        {"epochs": [[2, 0], [2, 8]]},
        {"epochs": [[2, 8], [3, 8]]},
        {"epochs": "x"},
    ],
)
def test_entries_that_contradict_each_other_are_refused(tmp_path: Path, value: object) -> None:
    """Epochs and starts both rise, or the file counts as unreadable."""
    (tmp_path / "EPOCHS").write_bytes(sealed_json(value))
    with pytest.raises(CorruptIndex):
        load_epochs(tmp_path)


def test_a_flipped_bit_is_noticed(tmp_path: Path) -> None:
    """The checksum covers all of it."""
    save_epochs(tmp_path, [(1, 0), (2, 96)])
    data = bytearray((tmp_path / "EPOCHS").read_bytes())
    data[14] ^= 1
    (tmp_path / "EPOCHS").write_bytes(data)
    with pytest.raises(CorruptIndex):
        load_epochs(tmp_path)


def test_an_entry_that_wrote_nothing_is_replaced() -> None:
    """The empty epoch trap: an entry that starts where another one started, or after a cut, replaces it."""
    assert with_epoch([], 1, 0) == [(1, 0)]
    assert with_epoch([(1, 0)], 2, 96) == [(1, 0), (2, 96)]
    assert with_epoch([(1, 0), (2, 96)], 3, 96) == [(1, 0), (3, 96)]
    assert with_epoch([(1, 0)], 2, 0) == [(2, 0)]


def test_entries_after_a_truncation_and_after_a_start() -> None:
    """A truncation removes epochs without a byte, a start leaves one at the end; the last expired one stays."""
    epochs = [(1, 0), (3, 100), (4, 200), (6, 300)]
    assert below(epochs, 200) == [(1, 0), (3, 100)]
    assert below(epochs, 0) == []
    assert recovered(epochs, 0, 200) == [(1, 0), (3, 100), (4, 200)]
    assert recovered(epochs, 150, 500) == [(3, 100), (4, 200), (6, 300)]
    assert recovered(epochs, 300, 500) == [(6, 300)]
    assert recovered([], 0, 0) == []


def test_the_epoch_of_a_byte() -> None:
    """The last entry at or below it, and where the next one starts."""
    epochs = [(1, 0), (3, 100), (4, 200)]
    assert [epoch_at(epochs, at) for at in (0, 99, 100, 250)] == [(1, 100), (1, 100), (3, 200), (4, None)]


def test_the_records_agree_with_the_file(tmp_path: Path) -> None:
    """Epochs that begin within a file, at its begin, one record apart, and after records larger than a piece."""
    bench = ReplicaBench(tmp_path / "data", epoch=1, segment_size_bytes=512 * 1024)
    queue = bench.store.queues.open(b"q")
    for epoch in range(2, 12):
        for _ in range(epoch % 4):
            size = 150_000 if epoch % 2 else 200
            bench.store.append(message([queue], bytes(size)))
        bench.flush()
        bench.reopen_as(epoch=2 * epoch)
    bench.store.append(message([queue], b"x"))
    bench.flush()
    log, end = bench.store._log, bench.store.end_position
    assert len(log.segments) > 2
    assert epochs_of(log, end) == bench.store.replica.epochs
    cut = bench.store.replica.epochs[4][1]
    assert epochs_of(log, cut) == below(bench.store.replica.epochs, cut)
    bench.close()


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
def test_an_incomplete_file_is_rebuilt(tmp_path: Path, damage: str) -> None:
    """Missing, unreadable or outdated: rebuilt from the records and, for a start without any, from the checkpoint."""
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


def test_entries_after_the_end_are_dropped(tmp_path: Path) -> None:
    """Durable before its first byte: a crash may leave an entry of an epoch whose log never got that far."""
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
    """Not below and not equal to any that the log has had, one without records included."""
    bench = grouped(tmp_path)
    for epoch in (1, 5, 6, 7):
        with pytest.raises(LocalMisuse, match="has seen epoch 7"):
            bench.open(epoch=epoch)
    assert bench.open(epoch=8).epoch == 8
    bench.close()


def test_a_single_node_does_not_scan_its_log(tmp_path: Path) -> None:
    """Without the file it continues without; an empty directory gets one, and each start that wrote an entry."""
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


def test_roles_by_name() -> None:
    """A writer without an epoch is a single node; with one, like every replica, it belongs to a group."""
    assert role_of("writer", None) == Role()
    assert role_of("writer", 4) == Role(epoch=4)
    assert role_of("replica", None) == Role(replica=True)
    assert [role_of(*each).grouped for each in (("writer", None), ("writer", 4), ("replica", None))] == [
        False,
        True,
        True,
    ]


@pytest.mark.parametrize(("name", "epoch"), [("replica", 3), ("leader", None), ("", 1)])
def test_invalid_roles(name: str, epoch: int | None) -> None:
    """A replica has no epoch of its own, and there are two roles only."""
    with pytest.raises(LocalMisuse):
        role_of(name, epoch)
