"""The compiled encoder's own dangers: bytes it reads by their address."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from broker.store.placed import Placed
from remoting.native import core as native
from remoting.protocol.errors import LocalMisuse
from tests.sim.batches import QUEUES, Bench
from tests.support.images import make_image, placed


@pytest.fixture(autouse=True)
def _compiled(twin: str) -> None:
    if twin != "compiled":
        pytest.skip("about the compiled twin")


@pytest.mark.parametrize("queues", [[0], ("a",), (None,), None, (1 << 70,)])
def test_queues_of_another_kind_are_refused(queues: object) -> None:
    """Never read as if they had the right type."""
    bench = Bench(native.core)
    with pytest.raises((LocalMisuse, TypeError)):
        bench.encode([placed((0,)), Placed(make_image(), [queues])])  # type: ignore[list-item]
    assert not any(bench.rows)


def test_images_of_another_kind_are_refused() -> None:
    """Objects that are not bytes, and too few bytes."""
    bench = Bench(native.core)
    for images in (bytearray(make_image()), "text", None):
        with pytest.raises(TypeError):
            bench.encode([Placed(images, [(0,)])])  # type: ignore[arg-type]
    for size in range(0, len(make_image()), 8):
        with pytest.raises(LocalMisuse):
            bench.encode([Placed(make_image()[:size], [(0,)])])
    assert not any(bench.rows)


@pytest.fixture(autouse=True)
def _compiled(twin: str) -> None:
    if twin != "compiled":
        pytest.skip("about the compiled twin")


def test_large_batches_follow_each_other(tmp_path: Path) -> None:
    """A smaller one after a larger one writes its own bytes, and no more of them."""
    bench, path, size = Bench(native.core), tmp_path / "file", 1 << 22
    path.write_bytes(bytes(size))
    descriptor = os.open(path, os.O_RDWR)
    encoder = native.core.make_encoder(3, size, 8)
    writer, position = native.core.make_segment_writer(encoder), 0
    writer.aim(bench.ring, QUEUES, memoryview(bytearray(48)).cast("q"), descriptor, 0, size)
    for byte, count in ((b"a", 160), (b"b", 140), (b"c", 200)):
        image = make_image(topic=b"", body=byte * 8112)
        position = writer.write([image * count], [[()] * count], False, 77, position, 1, 1).end_position
    os.close(descriptor)
    data = path.read_bytes()
    assert position == 500 * 8192
    assert [data[at + 80 : at + 8192] for at in range(0, position, 8192)] == (
        [b"a" * 8112] * 160 + [b"b" * 8112] * 140 + [b"c" * 8112] * 200
    )
    assert not any(data[position:])


def test_a_batch_of_many_megabytes_takes_the_long_path(tmp_path: Path) -> None:
    """No memory is reserved for it."""
    bench, path = Bench(native.core), tmp_path / "file"
    path.write_bytes(b"")
    descriptor = os.open(path, os.O_RDWR)
    writer = native.core.make_segment_writer(native.core.make_encoder(3, 1 << 30, 8))
    writer.aim(bench.ring, QUEUES, memoryview(bytearray(48)).cast("q"), descriptor, 0, 1 << 30)
    images = make_image(topic=b"", body=bytes(1 << 20)) * 9
    assert writer.write([images], [[()] * 9], False, 77, 0, 1, 1) is None
    assert os.fstat(descriptor).st_size == 0
    os.close(descriptor)
