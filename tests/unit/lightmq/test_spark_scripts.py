"""Scripts in the user's cache: whole, executable, one folder for each text."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from lightmq.spark_session import script


def test_a_script_is_written_once_and_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = script("tool", "#!/bin/sh\necho one\n")
    assert made.parts[-2:] == ("bin", "tool")
    assert subprocess.run([made], capture_output=True, text=True, check=True).stdout == "one\n"
    written = made.stat().st_mtime_ns
    assert script("tool", "#!/bin/sh\necho one\n") == made
    assert made.stat().st_mtime_ns == written
    assert script("tool", "#!/bin/sh\necho two\n") != made
    made.write_text("half")
    assert script("tool", "#!/bin/sh\necho one\n").read_text() == "#!/bin/sh\necho one\n"
