"""State from records, group by group."""

from __future__ import annotations

from pathlib import Path

from broker.store.inspection.directory import LogFiles, Walk
from broker.store.inspection.verifier import StateReplay
from broker.store.state import state_kinds
from broker.store.state.state_tables import StateTables
from tests.sim.stores import StoreBench


def test_whole_log_gives_the_tables_of_the_store(directory: Path) -> None:
    """Every kind, retained messages included."""
    replay = StateReplay(StateTables(), 0)
    for step in Walk(LogFiles(directory / "log"), 0):
        replay.take(*step)
    bench = StoreBench(directory)
    for kind in state_kinds.NAMES:
        assert dict(replay.tables.items(kind)) == dict(bench.store.state.items(kind))
    assert replay.tables.count(state_kinds.RETAINED) == 1
    bench.close()


def test_open_group_leaves_no_trace(directory: Path) -> None:
    """Without its last record a group is not there."""
    steps = list(Walk(LogFiles(directory / "log"), 0))
    opened = next(at for at, (_, _, head) in enumerate(steps) if head[9] & 0x10)
    replay = StateReplay(StateTables(), 0)
    for step in steps[: opened + 1]:
        replay.take(*step)
    assert replay.tables.count(state_kinds.LEDGER) == 0
    replay.take(*steps[opened + 1])
    assert replay.tables.count(state_kinds.LEDGER) == 1
