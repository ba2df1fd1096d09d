"""The page on the life of a message names the files that a PUBLISH really runs through, and no others."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "life_of_a_message.md"
HANDED_OVER = "the request is made and handed over"


def rows() -> dict[str, list[str]]:
    """What happens in a hop -> the files of its row; those of the handover in a row of their own for each transport."""
    _, section = PAGE.read_text().split("## The files of one PUBLISH\n")
    found = {}
    for line in section.partition("\n## ")[0].splitlines():
        cells = line.split(" | ")
        if re.match(r"\| \d", line):
            shared, *ways = cells[-1].split("; ")
            found[cells[1]] = re.findall(r"\(\.\./([^)]*)\)", shared)
            found |= {f"way {number}": re.findall(r"\(\.\./([^)]*)\)", way) for number, way in enumerate(ways)}
    return found


@pytest.mark.parametrize(("way", "other", "number"), [("inprocess", "way 1", 31), ("tcp", "way 0", 34)])
def test_the_files_are_those_that_run(way: str, other: str, number: int) -> None:
    found = rows()
    named = {file for what, files in found.items() if what != other for file in files}
    run = subprocess.run(
        [sys.executable, "-m", "tests.support.traced_publish", way],
        cwd=ROOT, env=os.environ | {"LIGHTMQ_PURE": "1"}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert sorted(run.stdout.split()) == sorted(named)
    assert len(named) == number
    assert f"{number} " in PAGE.read_text()


def test_there_are_nine_hops() -> None:
    found = rows()
    assert HANDED_OVER in found
    assert len([what for what in found if not what.startswith("way ")]) == 9
