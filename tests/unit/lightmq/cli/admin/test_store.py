from __future__ import annotations

import json
from pathlib import Path

import pytest

from lightmq.cli.application import run
from tests.sim.stores import StoreBench, message


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    bench = StoreBench(tmp_path / "data" / "broker")
    queue = bench.store.queues.open(b"q")
    for n in range(50):
        bench.store.append(message([queue], b"%d" % n))
    bench.settle()
    bench.close()
    return tmp_path / "data"


def test_verify_says_sound_or_damaged(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["store", "verify", str(directory), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["entries"] == 50
    path = directory / "broker" / "log" / "0".zfill(20)
    data = bytearray(path.read_bytes())
    data[2000] ^= 1
    path.write_bytes(data)
    with pytest.raises(SystemExit) as ended:
        run(["store", "verify", str(directory)])
    assert ended.value.code == 1
    assert "error: log" in capsys.readouterr().out


def test_dump_and_stat(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["store", "dump", str(directory), "--queue", "q", "--limit", "2"]) == 0
    assert [json.loads(line)["body"] for line in capsys.readouterr().out.splitlines()] == ["0", "1"]
    assert run(["store", "stat", str(directory), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["queues"] == 1
    assert run(["store", "stat", str(directory)]) == 0
    assert "state queue: 1 entries" in capsys.readouterr().out
    assert run(["store", "stat", str(directory), "--queues"]) == 0
    assert capsys.readouterr().out == "0\tq\n"


def test_rebuild_index(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["store", "rebuild-index", str(directory), "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["records"], done["queues"]) == (51, 1)
    assert run(["store", "rebuild-index", str(directory), "--progress"]) == 0
    said = capsys.readouterr()
    assert "rebuilt from 51 records" in said.out
    assert "rebuilding the index: 100 %\n" in said.err
    assert run(["store", "verify", str(directory), "--progress"]) == 0
    assert "checking the log: 100 %\n" in capsys.readouterr().err


def test_no_directory_and_one_in_use(directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(["store", "stat", str(tmp_path / "nowhere")])
    assert ended.value.code == 2
    assert "no data directory" in capsys.readouterr().err
    bench = StoreBench(directory / "broker")
    assert run(["store", "rebuild-index", str(directory)]) == 1
    assert "in use by process" in capsys.readouterr().err
    bench.close()
