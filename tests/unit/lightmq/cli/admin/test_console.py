"""`lightmq console`: `lightmq.cli.admin.console`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from console.tokens import TokenFile
from lightmq.cli.application import run


def test_tokens_are_made_and_printed_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["console", "token", "--data", str(tmp_path)]
    assert run(where) == 0
    assert "there is no token for the role admin" in capsys.readouterr().out
    assert run([*where, "--renew"]) == 0
    first = capsys.readouterr().out.strip()
    assert run([*where, "--renew", "--read-only", "--json"]) == 0
    other = json.loads(capsys.readouterr().out)
    assert other["role"] == "monitor"
    tokens = TokenFile(tmp_path)
    assert (tokens.role(first), tokens.role(other["console_token"])) == ("admin", "monitor")
    assert run([*where, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"exists": True, "role": "admin"}
    assert run([*where, "--renew"]) == 0
    capsys.readouterr()
    assert tokens.role(first) is None


def test_a_directory_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["console", "token", "--data", str(tmp_path / "none")]) == 1
    assert "there is no data directory" in capsys.readouterr().err
