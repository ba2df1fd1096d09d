"""The runs a MANIFEST names, read again when they change."""

from __future__ import annotations

import pytest

from broker.store.attached.index_view import RunSet
from broker.store.attached.tail_view import Moved
from broker.store.errors import CorruptIndex


def test_runs_come_merge_and_go(pair) -> None:
    runs = RunSet(pair.directory / "index")
    runs.load(0)
    assert runs.runs == []
    pair.append(5)
    pair.make_run()
    runs.load(0)
    assert runs.runs == [], "the writer has not said anything"
    runs.load(1)
    (first,) = runs.runs
    pair.append(5)
    pair.make_run()
    runs.load(2)
    assert runs.runs[0] is first, "what is known is not opened again"
    assert len(runs.runs) == 2
    pair.append(5)
    pair.make_run()
    runs.load(pair.attached._attached().tail.generation)
    assert [run.entry_count for run in runs.runs] == [15], "three of them were merged"


def test_a_run_that_went_before_it_was_opened(pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.append(5)
    pair.make_run()
    runs = RunSet(pair.directory / "index")
    (path,) = (pair.directory / "index").glob("run-*")
    path.rename(path.with_name("elsewhere"))
    with pytest.raises(Moved):
        runs.load(1)
    path.with_name("elsewhere").rename(path)
    runs.load(1)
    assert len(runs.runs) == 1


def test_a_manifest_that_cannot_be_read(pair) -> None:
    pair.append(5)
    pair.make_run()
    manifest = pair.directory / "index" / "MANIFEST"
    content = manifest.read_bytes()
    manifest.write_bytes(b"{}")
    with pytest.raises(CorruptIndex):
        RunSet(pair.directory / "index").load(1)
    manifest.unlink()
    nothing = RunSet(pair.directory / "index")
    nothing.load(1)
    assert nothing.runs == []
    manifest.write_bytes(content)
