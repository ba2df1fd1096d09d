"""The units start what exists, with little more than the rights of a server of sockets and files."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from lightmq.cli.application import run
from tests.support.tree import ROOT

UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
EXPOSURE_MAX = 20
"""systemd's own score of a unit times ten: 100 is no protection at all; 20 is its "OK"."""

each_unit = pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)


def test_there_is_one_for_every_part() -> None:
    """And one for all in one process."""
    commands = {re.search(r"^ExecStart=\S+/lightmq (\w+)", path.read_text(), re.MULTILINE)[1] for path in UNITS}  # type: ignore[index]
    assert commands == {"up", "controller", "broker", "proxy"}


def test_they_differ_in_what_they_start_alone() -> None:
    """A right added to one of them would be forgotten in the others."""
    own = re.compile(r"^(#.*|Description=.*|After=.*|ExecStart=.*)$", re.MULTILINE)
    assert len({own.sub("", path.read_text()) for path in UNITS}) == 1


@each_unit
def test_the_command_has_these_options(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A unit with an unknown option would restart for ever."""
    line = re.search(r"^ExecStart=\S+ (\w+) (.*)$", path.read_text(), re.MULTILINE)
    assert line is not None
    assert run([line[1], "--help"]) == 0
    shown = capsys.readouterr().out
    for option in re.findall(r"--[\w-]+", line[2]):
        assert option in shown


@each_unit
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_calls_it_well_protected(path: Path) -> None:
    """By its own measure, without a running systemd."""
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", f"--threshold={EXPOSURE_MAX}", str(path)],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3_000:] + done.stderr
    assert "Overall exposure level" in done.stdout
