"""The compiled pen's own danger: memory that it uses again for the next large batch."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from remoting.native import core as native
from tests.sim.batches import QUEUES, Bench
from tests.support.images import make_image


@pytest.fixture(autouse=True)
def _compiled(twin: str) -> None:
    if twin != "compiled":
        pytest.skip("about the compiled twin")


def test_large_batches_follow_each_other(tmp_path: Path) -> None:
    """A smaller one behind a larger one writes its own bytes, and no more of them."""
    bench, path, size = Bench(native.core), tmp_path / "file", 1 << 22
    path.write_bytes(bytes(size))
    descriptor = os.open(path, os.O_RDWR)
    encoder = native.core.make_encoder(3, size, 8)
    pen, position = native.core.make_pen(encoder), 0
    pen.aim(bench.ring, QUEUES, memoryview(bytearray(48)).cast("q"), descriptor, 0, size)
    for byte, count in ((b"a", 160), (b"b", 140), (b"c", 200)):
        image = make_image(topic=b"", body=byte * 8112)
        position = pen.write([image * count], [[()] * count], False, 77, position, 1, 1).end_position
    os.close(descriptor)
    data = path.read_bytes()
    assert position == 500 * 8192
    assert [data[at + 80 : at + 8192] for at in range(0, position, 8192)] == (
        [b"a" * 8112] * 160 + [b"b" * 8112] * 140 + [b"c" * 8112] * 200
    )
    assert not any(data[position:])


def test_a_batch_of_many_megabytes_goes_the_long_way(tmp_path: Path) -> None:
    """No memory is kept for it."""
    bench, path = Bench(native.core), tmp_path / "file"
    path.write_bytes(b"")
    descriptor = os.open(path, os.O_RDWR)
    pen = native.core.make_pen(native.core.make_encoder(3, 1 << 30, 8))
    pen.aim(bench.ring, QUEUES, memoryview(bytearray(48)).cast("q"), descriptor, 0, 1 << 30)
    images = make_image(topic=b"", body=bytes(1 << 20)) * 9
    assert pen.write([images], [[()] * 9], False, 77, 0, 1, 1) is None
    assert os.fstat(descriptor).st_size == 0
    os.close(descriptor)
