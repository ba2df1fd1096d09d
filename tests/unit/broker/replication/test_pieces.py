"""What goes to replicas: the same to whoever lacks the same, and nothing stale."""

from __future__ import annotations

from pathlib import Path

from broker.replication.decoder import Decoder
from broker.replication.epochs import Epochs
from broker.replication.frames import FROM_MASTER, Transfer
from broker.replication.ha_server import Piece, Pieces
from broker.store.log_store import LogStore
from tests.support.replication import append, open_store

PART_BYTES = 1 << 20


def ask(pieces: Pieces, store: LogStore, position: int = 0, bytes_max: int = PART_BYTES) -> Piece:
    """The piece, which is what its frame says."""
    piece = pieces.at(store, Epochs(store.replica.epochs), position, bytes_max)
    assert piece is not None
    (frame,) = Decoder(FROM_MASTER).feed(piece.head + piece.data)
    assert isinstance(frame, Transfer)
    part = store.replica.raw(position, bytes_max)
    assert part is not None
    assert (frame.epoch, frame.epoch_start, frame.position, frame.confirm) == (1, 0, position, store.confirm_position)
    assert (frame.segment_base, frame.segment_size, frame.data) == (part.segment_base, part.segment_size, part.data)
    return piece


async def test_whoever_asks_for_the_same_gets_the_same(tmp_path: Path) -> None:
    """Another position, size, end or confirm position makes another piece; a forgotten one is made anew."""
    store = open_store(tmp_path, epoch=1)
    middle = append(store, 3)
    append(store, 3)
    pieces = Pieces()
    first = ask(pieces, store)
    assert ask(pieces, store) is first
    assert ask(pieces, store, middle) is not first
    assert len(ask(pieces, store, 0, 1).data) < len(first.data)
    first = ask(pieces, store)
    append(store, 1)
    second = ask(pieces, store)
    assert len(second.data) > len(first.data)
    pieces.forget()
    assert ask(pieces, store) is not second
    assert pieces.at(store, Epochs(store.replica.epochs), store.end_position, PART_BYTES) is None
    store.close()


async def test_a_confirm_position_that_moved_is_said(tmp_path: Path) -> None:
    """The head carries it."""
    store = open_store(tmp_path, epoch=1)
    store.positions.limit_confirm(0)
    end = append(store, 3)
    pieces = Pieces()
    first = ask(pieces, store)
    store.positions.limit_confirm(None)
    store.positions.take_flushed(store._log.sync())
    assert store.confirm_position == end
    assert ask(pieces, store) is not first
    store.close()
