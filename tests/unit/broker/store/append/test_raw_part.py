"""Pieces of the log as bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.store.append.replica_writer import RawPart
from remoting.protocol.errors import LocalMisuse
from tests.sim.log_judge import read_log
from tests.sim.replicas import ReplicaBench, log_bytes
from tests.sim.stores import message


def test_parts_are_whole_records_within_one_file_and_one_epoch(tmp_path: Path) -> None:
    """Laid end to end they are the log; none is much larger than asked for, and each says where it belongs."""
    bench = ReplicaBench(tmp_path / "data", epoch=1)
    queue = bench.store.queues.open(b"q")
    for epoch in (2, 3, 4):
        for number in range(40):
            bench.store.append(message([queue], bytes(10 * number)))
        bench.flush()
        bench.reopen_as(epoch=epoch)
    ends = {seen.end for seen in read_log(bench.directory)} | {16 * 1024 * n for n in range(9)}
    largest = max(seen.end - seen.position for seen in read_log(bench.directory))
    for bytes_max in (1, 500, 3000, 1 << 20):
        position = 0
        while (part := bench.store.replica.raw(position, bytes_max)) is not None:
            assert (part.position, part.segment_size) == (position, 16 * 1024)
            assert part.segment_base == position // (16 * 1024) * (16 * 1024)
            assert part.end in ends
            assert len(part.data) < bytes_max + largest
            starts = [start for _, start in bench.store.replica.epochs]
            assert not any(position < start < part.end for start in starts)
            file = log_bytes(bench.directory)[f"{part.segment_base:020d}"]
            assert bytes(part.data) == file[position - part.segment_base : part.end - part.segment_base]
            position = part.end
        assert position == bench.store.end_position
    bench.close()


def test_what_has_expired_is_refused(tmp_path: Path) -> None:
    """Below the begin there is nothing to send: whoever asks must begin anew."""
    bench = ReplicaBench(tmp_path / "data", retention_size_bytes=20_000)
    queue = bench.store.queues.open(b"q")
    for _ in range(60):
        bench.store.append(message([queue], bytes(1000)))
        bench.settle()
    while bench.store.begin_position == 0:
        bench.store.maintain(0)
        bench.settle()
    with pytest.raises(LocalMisuse, match="expired"):
        bench.store.replica.raw(0, 100)
    assert isinstance(bench.store.replica.raw(bench.store.begin_position, 100), RawPart)
    bench.close()
