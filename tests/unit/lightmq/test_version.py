from __future__ import annotations

import tomllib
from pathlib import Path

from lightmq.version import VERSION

ROOT = Path(__file__).resolve().parents[3]


def test_the_version_is_the_one_of_the_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == VERSION
