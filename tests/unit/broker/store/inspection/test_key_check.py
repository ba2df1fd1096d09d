"""The key index against the log."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.store.inspection.commands import summarise
from broker.store.inspection.directory import KeyFiles, LogKeys, Walk, check_keys, open_directory, open_key_files
from broker.store.inspection.verifier import verify
from broker.store.keys.key_index import KeyManifest, KeyRun, load_key_manifest, save_key_manifest, write_key_run
from tests.sim.keyed import keyed_message
from tests.sim.stores import StoreBench, drain, message


@pytest.fixture
def keyed(tmp_path: Path) -> Path:
    """A closed store: keys in several runs, and a range without keys that no run covers."""
    bench = StoreBench(tmp_path / "keyed", key_index_entries=64, index_merge_runs=30)
    queue = bench.store.queues.open(b"q")
    for n in range(240):
        if 100 <= n < 180:
            bench.store.append(message([queue], b"plain"))
            bench.settle()
            bench.store.maintain(0)
            drain(bench.store)
        else:
            bench.store.append(keyed_message([queue], b"%d" % n, keys=b"a k%d" % n))
    bench.settle()
    bench.close()
    return tmp_path / "keyed"


def keys_of(directory: Path) -> tuple[KeyFiles, LogKeys]:
    """The keys in the files and those in the log."""
    found = open_directory(directory)
    keys = LogKeys(found.keys)
    for file, at, head in Walk(found.files, 0):
        keys.add(file.view, file.base, file.base + at, file.base + at + head[0])
    return found.keys, keys


def test_a_sound_index(keyed: Path) -> None:
    """Nothing to report, and verify and stat count what there is."""
    files, keys = keys_of(keyed)
    assert len(files.runs) > 2
    assert list(check_keys(files, keys, 0)) == []
    report = verify(keyed)
    assert (report.errors, report.key_runs, report.keys) == ([], len(files.runs), 320)
    assert sum(run["entries"] for run in summarise(keyed).key_runs) == 320
    assert summarise(keyed).keys_indexed_position == report.end_position


def test_a_valid_run_with_wrong_content(keyed: Path) -> None:
    """Valid checksums, wrong content: the difference is named."""
    files, keys = keys_of(keyed)
    run = max(files.runs, key=lambda each: each.entry_count)
    columns = tuple(column.astype(column.kind) for column in run.columns())
    columns[3][5] += 1
    write_key_run(run.path, run.file_id, 0, (run.first_position, run.end_position), columns)  # type: ignore[arg-type]
    files.runs[files.runs.index(run)] = KeyRun(run.path)
    ((path, text),) = check_keys(files, keys, 0)
    assert path == run.path
    assert f"second {columns[3][5]}/{columns[3][5] - 1}" in text
    assert list(check_keys(files, keys, 0, [(run.first_position, run.end_position)])) == []  # damage: unknown


def test_a_run_that_lacks_a_key_and_one_that_is_missing(keyed: Path) -> None:
    """Both show in verify."""
    manifest = load_key_manifest(keyed / "keys")
    assert manifest is not None
    files, _ = keys_of(keyed)
    run = files.runs[0]
    columns = tuple(column[1:] for column in run.columns())
    write_key_run(run.path, run.file_id, 0, (run.first_position, run.end_position), columns)  # type: ignore[arg-type]
    save_key_manifest(keyed / "keys", KeyManifest(manifest.next_file_id, manifest.end_position, manifest.runs[:-1]))
    texts = [finding.text for finding in verify(keyed).errors if finding.check == "keys"]
    assert len(texts) == 2
    assert "keys where the log has" in texts[0]
    assert "where the manifest says that the runs end" in texts[1]


def test_damage_of_the_key_index_is_reported(keyed: Path) -> None:
    """A header or a missing file as unreadable metadata, a column by its checksum; an empty index is sound."""
    runs = sorted((keyed / "keys").glob("run-*"))
    data = runs[0].read_bytes()
    runs[0].write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert [finding.check for finding in verify(keyed).errors] == ["keys"]
    runs[0].unlink()
    assert [finding.check for finding in verify(keyed).errors] == ["metadata"]
    unreadable: list = []
    assert open_key_files(keyed / "none", unreadable).runs == []
    assert unreadable == []
