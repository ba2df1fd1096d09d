"""The compiled encoder's own dangers: objects it reads by their place in memory."""

from __future__ import annotations

import pytest

from broker.store import hot
from broker.store.store_message import StoreMessage
from remoting.protocol.errors import LocalMisuse
from tests.sim.batches import Bench


@pytest.fixture(autouse=True)
def _compiled(twin: str) -> None:
    if twin != "compiled":
        pytest.skip("about the compiled twin")


def good() -> StoreMessage:
    return StoreMessage((0,), 5, 0, 0, 0, 1, 0, 0, 0, b"t", b"body")


@pytest.mark.parametrize(
    ("field", "value"),
    [("queues", [0]), ("meta", "t"), ("born_ms", "5"), ("body", 5), ("body", None), ("queues", ("a",))],
)
def test_a_field_of_another_kind_is_refused(field: str, value: object) -> None:
    """Never read as if it were what it should be."""
    bench, message = Bench(hot.core), good()
    setattr(message, field, value)
    with pytest.raises((LocalMisuse, TypeError)):
        bench.encode([good(), message])
    assert not bench.rows.any()


def test_a_missing_field_and_another_class_are_refused() -> None:
    """A deleted slot is empty memory; another class has its slots elsewhere."""
    bench, message = Bench(hot.core), good()
    del message.meta
    with pytest.raises(AttributeError):
        bench.encode([message])
    with pytest.raises(LocalMisuse, match="no StoreMessage"):
        bench.encode([object()])  # type: ignore[list-item]
