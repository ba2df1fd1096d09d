"""Walking log files without owning them."""

from __future__ import annotations

from pathlib import Path

from broker.store.inspection.directory import LogFiles, Walk
from tests.sim.log_judge import read_log


def test_the_walk_agrees_with_the_judge(directory: Path) -> None:
    """Every record, fillers left out, and the end."""
    files = LogFiles(directory / "log")
    walk = Walk(files, files.begin)
    positions = [file.base + at for file, at, _ in walk]
    judged = read_log(directory)
    assert positions == [seen.position for seen in judged]
    assert walk.scan.groups_end == walk.scan.records_end == judged[-1].end
    assert files.size_bytes == sum(path.stat().st_size for path in (directory / "log").iterdir())


def test_record_start_rounds_up(directory: Path) -> None:
    """A position inside a record leads to the next one."""
    files = LogFiles(directory / "log")
    judged = read_log(directory)
    assert files.record_start(judged[7].position) == judged[7].position
    assert files.record_start(judged[7].position + 1) == judged[8].position
    assert files.record_start(10**12) == 10**12


def test_damage_ends_the_walk(directory: Path) -> None:
    """The reason is kept; an empty file contains nothing."""
    judged = read_log(directory)
    path = directory / "log" / "0".zfill(20)
    data = bytearray(path.read_bytes())
    data[judged[3].position + 40] ^= 1
    path.write_bytes(data)
    walk = Walk(LogFiles(directory / "log"), 0)
    assert len(list(walk)) == 3
    assert walk.scan.records_end == judged[3].position
    assert walk.scan.reason
    path.write_bytes(b"")
    assert list(Walk(LogFiles(directory / "log"), 0)) == []
