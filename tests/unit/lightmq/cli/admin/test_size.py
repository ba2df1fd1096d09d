"""The command `size` (lightmq.cli.admin.size), and the page that shows what it prints."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from lightmq.cli.application import run
from lightmq.sizing import table

PAGE = Path(__file__).resolve().parents[5] / "docs" / "sizing.md"


def test_the_page_and_the_command_agree(capsys: pytest.CaptureFixture[str]) -> None:
    page = PAGE.read_text()
    assert table() in page
    examples = re.findall(r"^\$ (lightmq size .*)\n((?:(?!\$|```).*\n)+)", page, re.MULTILINE)
    assert len(examples) == 2
    for command, printed in examples:
        assert run(shlex.split(command)[1:]) == 0
        assert capsys.readouterr().out == printed


@pytest.mark.parametrize(
    "wrong", [["--devices", "-1"], ["--devices", "5", "--rate", "0"], ["--devices", "5", "--days", "0"]]
)
def test_what_makes_no_sense_is_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["size", *wrong]) == 2
    assert "must be" in capsys.readouterr().err


def test_the_same_numbers_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["size", "--devices", "7", "--total-rate", "70", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["messages_per_s"] == 70.0
