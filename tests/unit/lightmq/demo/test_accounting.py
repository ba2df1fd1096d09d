"""The accounting holds only if every figure of an equation is the same."""

from __future__ import annotations

import json
from pathlib import Path

from lightmq.demo.accounting import LedgerRow, committed_files, decide_again, read_ledger, settle
from lightmq.demo.rule import WARM_UP_READINGS


def rows_with_one_event() -> list[LedgerRow]:
    """A calm sensor that jumps once at the end."""
    values = [10.0 + 0.1 * (index % 3) for index in range(WARM_UP_READINGS + 5)] + [99.0]
    return [LedgerRow(f"d-{index}", "heat", value, 0, index, index) for index, value in enumerate(values)]


def test_a_complete_run_adds_up() -> None:
    """All readings read once, the one command delivered once."""
    rows = rows_with_one_event()
    command = f"cmd-{rows[-1].id}"
    settled = settle(acknowledged=len(rows), stored=(len(rows) + 1, 1), rows=rows, deliveries={command: 1})
    assert settled.holds
    assert decide_again(reversed(rows)) == {command}


def test_every_kind_of_difference_is_found() -> None:
    """A lost, a repeated and an invented item each break their equation."""
    rows = rows_with_one_event()
    command = f"cmd-{rows[-1].id}"
    good = {"acknowledged": len(rows), "stored": (len(rows) + 1, 1), "rows": rows, "deliveries": {command: 1}}
    for change in (
        {"acknowledged": len(rows) + 1},
        {"stored": (len(rows), 1)},
        {"rows": [*rows, rows[0]]},
        {"rows": rows[:-1]},
        {"deliveries": {command: 2}},
        {"deliveries": {}},
        {"deliveries": {"cmd-other": 1}},
    ):
        assert not settle(**(good | change)).holds, change  # type: ignore[arg-type]


def test_only_files_that_spark_committed_count(tmp_path: Path) -> None:
    """Left-overs of failed attempts are ignored, compacted logs replace what they contain."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    log = tmp_path / "_spark_metadata"
    log.mkdir()
    table = pa.table({"id": ["a"], "sensor": ["s"], "value": [1.0], "queueId": [0], "queueOffset": [5], "time_ms": [7]})
    for name in ("one", "two", "three", "left-over"):
        parquet.write_table(table, tmp_path / f"{name}.parquet")

    def entries(*names: str) -> str:
        return "v1\n" + "\n".join(json.dumps({"path": f"file:///x/{name}.parquet", "action": "add"}) for name in names)

    (log / "0").write_text(entries("one"))
    (log / "1.compact").write_text(entries("one", "two"))
    (log / "2").write_text(entries("three"))
    (log / ".2.crc").write_text("")
    assert [path.stem for path in committed_files(tmp_path)] == ["one", "two", "three"]
    assert read_ledger(tmp_path) == [LedgerRow("a", "s", 1.0, 0, 5, 7)] * 3


def test_a_folder_without_commits_is_empty(tmp_path: Path) -> None:
    """No metadata, no rows."""
    assert committed_files(tmp_path) == []
