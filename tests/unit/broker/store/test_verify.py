"""The checking command."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from broker.store.verify import main
from tests.sim.stores import StoreBench, message


def filled(tmp_path: Path) -> Path:
    bench = StoreBench(tmp_path / "data")
    queues = bench.store.queues.open_all([b"a", b"b"])
    for n in range(200):
        bench.store.append(message(queues[: 1 + n % 2], b"%d" % n))
    bench.settle()
    bench.close()
    return tmp_path / "data"


def test_sound_directory(tmp_path: Path, capsys) -> None:
    """Counts of what is there, exit status 0."""
    directory = filled(tmp_path)
    assert main([str(directory), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["entries"], report["run_entries"], report["queues"], report["errors"]) == (300, 300, 2, [])
    assert main([str(directory)]) == 0
    said = capsys.readouterr().out
    assert "records: 201" in said
    assert "run entries: 300" in said
    assert "no further record\nsound\n" in said
    assert "magic" not in said


def test_damage_is_found(tmp_path: Path, capsys) -> None:
    """A flipped bit in a run or in the log below the index is an error."""
    directory = filled(tmp_path)
    log = directory / "log" / "0".zfill(20)
    data = bytearray(log.read_bytes())
    data[3000] ^= 1
    log.write_bytes(data)
    assert main([str(directory), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["errors"]
    data[3000] ^= 1
    log.write_bytes(data)
    run = next((directory / "index").glob("run-*"))
    content = bytearray(run.read_bytes())
    content[-3] ^= 1
    run.write_bytes(content)
    assert main([str(directory)]) == 1
    assert "columns" in capsys.readouterr().out


def test_a_log_that_ends_before_its_durable_position(tmp_path: Path, capsys) -> None:
    """Damage that no index covers is found by the checkpoint; a damaged checkpoint is an error by itself."""
    directory = filled(tmp_path)
    shutil.rmtree(directory / "index")
    log = directory / "log" / "0".zfill(20)
    data = bytearray(log.read_bytes())
    data[3000] ^= 1
    log.write_bytes(data)
    assert main([str(directory)]) == 1
    assert "below the durable" in capsys.readouterr().out
    (directory / "CHECKPOINT").write_text("{}\n0\n")
    assert main([str(directory)]) == 1
    assert "CHECKPOINT" in capsys.readouterr().out


def test_no_directory(tmp_path: Path, capsys) -> None:
    """Something else gets exit status 2."""
    assert main([str(tmp_path)]) == 2
