"""A closed store with records of every kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.store.state import state_kinds
from broker.store.state.state_kinds import StateChange
from tests.sim.stores import StoreBench, message

QUEUES = (b"parent", b"plant/7", b"plant/+")
MESSAGES = 300


def fill(bench: StoreBench, count: int = MESSAGES) -> None:
    """Append messages into three queues, state of several kinds, a retained message and a deleted queue."""
    store = bench.store
    queues = store.queues.open_all(list(QUEUES))
    doomed = store.queues.open(b"doomed")
    for n in range(count):
        store.append(message(queues[: 1 + n % 3], b"%d" % n), changes=[
            StateChange(state_kinds.LEDGER, b"sink", b"%d" % n)
        ] if n % 10 == 0 else [])  # fmt: skip
    store.append(message(queues[:1], b"last", flags=0x0C, mqtt_topic=b"plant/7/temp"))
    store.append_state([StateChange(state_kinds.SESSION, b"c", b"v"), StateChange(state_kinds.SESSION, b"d", b"v")])
    store.append_state([StateChange(state_kinds.SESSION, b"d", None)])
    store.queues.delete([doomed])
    bench.settle()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    bench = StoreBench(tmp_path / "data")
    fill(bench)
    bench.close()
    return tmp_path / "data"
