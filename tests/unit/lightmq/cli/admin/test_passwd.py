from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from lightmq.cli.admin import credentials as module
from lightmq.cli.application import run
from lightmq.cli.outcome import CommandFailed
from lightmq.credentials import PasswordFile
from mqtt_proxy.access.credentials import verify
from mqtt_proxy.access.password_method import parse


def test_a_password_from_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p"
    monkeypatch.setattr(sys, "stdin", io.StringIO("secret\n"))
    assert run(["passwd", str(path), "ann", "--stdin"]) == 0
    assert PasswordFile(path).names() == ["ann"]
    assert run(["passwd", str(path), "ann", "--delete"]) == 0
    assert PasswordFile(path).names() == []
    assert run(["passwd", str(path), "ann", "--delete"]) == 1


def test_a_password_from_the_environment_or_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTMQ_PASSWORD", "x")
    assert module.ask(stdin=False) == "x"
    monkeypatch.delenv("LIGHTMQ_PASSWORD")
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    with pytest.raises(CommandFailed, match="--stdin"):
        module.ask(stdin=False)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    answers = iter(["one", "one", "one", "two"])
    monkeypatch.setattr(module.getpass, "getpass", lambda _: next(answers))
    assert module.ask(stdin=False) == "one"
    with pytest.raises(CommandFailed, match="differ"):
        module.ask(stdin=False)


def test_a_password_for_scram(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p"
    for arguments in (["--scram"], [], ["--scram"]):
        monkeypatch.setattr(sys, "stdin", io.StringIO("secret\n"))
        assert run(["passwd", str(path), "ann", "--stdin", *arguments]) == 0
        (stored,) = parse(path.read_bytes()).hashes.values()
        assert stored.startswith("SCRAM-SHA-256$") is bool(arguments)
        assert verify(stored, b"secret")
    monkeypatch.setattr(sys, "stdin", io.StringIO("bell\a\n"))
    assert run(["passwd", str(path), "bob", "--stdin", "--scram"]) == 1
