from __future__ import annotations

from pathlib import Path

import pytest

from lightmq.cli.application import run


def test_an_authority_is_made_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["certs", str(tmp_path / "tls"), "--name", "node-{0..1}", "--name", "127.0.0.1"]
    assert run(arguments) == 0
    assert "certificate for node-0, node-1, 127.0.0.1 by a new authority in" in capsys.readouterr().err
    assert run([*arguments, "--days", "7"]) == 0
    assert "by the authority that was there" in capsys.readouterr().err
    assert {path.name for path in (tmp_path / "tls").iterdir()} == {"ca.crt", "ca.key", "tls.crt", "tls.key"}


def test_bad_arguments_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["certs", str(tmp_path), "--name", "a", "--days", "0"]) == 2
    assert "--days must be 1 to 3650, not 0" in capsys.readouterr().err
    assert run(["certs", str(tmp_path), "--name", "a b"]) == 1
    assert "'a b' is neither a host name nor an address" in capsys.readouterr().err
    assert run(["certs", str(tmp_path)]) == 2
