"""The compiled encoder's own dangers: bytes it reads by their place in memory."""

from __future__ import annotations

import pytest

from broker.store.placed import Placed
from remoting.native import core as native
from remoting.protocol.errors import LocalMisuse
from tests.sim.batches import Bench
from tests.support.images import make_image, placed


@pytest.fixture(autouse=True)
def _compiled(twin: str) -> None:
    if twin != "compiled":
        pytest.skip("about the compiled twin")


@pytest.mark.parametrize("queues", [[0], ("a",), (None,), None, (1 << 70,)])
def test_queues_of_another_kind_are_refused(queues: object) -> None:
    """Never read as if they were what they should be."""
    bench = Bench(native.core)
    with pytest.raises((LocalMisuse, TypeError)):
        bench.encode([placed((0,)), Placed(make_image(), [queues])])  # type: ignore[list-item]
    assert not bench.rows.any()


def test_images_of_another_kind_are_refused() -> None:
    """What is no bytes, and what is too few."""
    bench = Bench(native.core)
    for images in (bytearray(make_image()), "text", None):
        with pytest.raises(TypeError):
            bench.encode([Placed(images, [(0,)])])  # type: ignore[arg-type]
    for size in range(0, len(make_image()), 8):
        with pytest.raises(LocalMisuse):
            bench.encode([Placed(make_image()[:size], [(0,)])])
    assert not bench.rows.any()
