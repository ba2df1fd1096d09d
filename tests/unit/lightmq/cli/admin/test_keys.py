from __future__ import annotations

from pathlib import Path

import pytest

from lightmq.cli.application import run


def test_keys_for_an_access_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rules = tmp_path / "rules"
    rules.write_text("user node\nrole broker a\nuser ops\nrole admin\n")
    arguments = ["keys", str(tmp_path / "keys"), "--access-list", str(rules)]
    assert run([*arguments, "--name", "spark"]) == 0
    assert "3 new keys" in capsys.readouterr().err
    assert run(arguments) == 0
    assert "0 new keys" in capsys.readouterr().err
    assert {path.name for path in (tmp_path / "keys").iterdir()} == {"node", "ops", "spark", "all", "env"}


def test_bad_arguments_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["keys", str(tmp_path / "keys")]) == 1
    assert "name the keys" in capsys.readouterr().err
    assert run(["keys", str(tmp_path / "keys"), "--access-list", str(tmp_path / "none")]) == 1
    assert "access list" in capsys.readouterr().err
