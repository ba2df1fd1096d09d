"""``lightmq profile``, and commands that use what it wrote."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from lightmq.cli.application import run


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LIGHTMQ_PROFILES", str(tmp_path / "mine" / "profiles.toml"))
    return tmp_path / "mine" / "profiles.toml"


def test_add_use_list_remove(log_server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    log_server.topics_body = json.dumps({"topics": [{"topic": "plant", "queues": []}]}).encode()
    assert run(["profile", "list"]) == 0
    assert "lightmq profile add" in capsys.readouterr().err
    assert run(["profile", "add", "here", "--server", log_server.address]) == 0
    assert run(["profile", "add", "there", "--server", "127.0.0.1:1", "--mqtt", "m:1", "--mqtt-tls"]) == 0
    assert "lightmq profile use there" in capsys.readouterr().out
    assert run(["topics"]) == 0
    assert "plant" in capsys.readouterr().out
    assert run(["topics", "--profile", "there"]) == 1
    assert run(["profile", "use", "there"]) == 0
    assert run(["topics"]) == 1
    capsys.readouterr()
    assert run(["profile", "list"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[1] == ["here", log_server.address, "-", "-", "-", "-"]
    assert lines[2] == ["*", "there", "127.0.0.1:1", "m:1", "-", "-", "mqtt"]
    assert run(["profile", "remove", "there"]) == 0
    assert run(["profile", "remove", "there"]) == 1


def test_secrets_come_from_standard_input_and_are_never_shown(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("me:hidden\npass-hidden\n"))
    assert run(["profile", "add", "here", "--server", "a:1", "--key", "--user", "ann", "--password"]) == 0
    assert 'key = "me:hidden"' in place.read_text()
    assert 'password = "pass-hidden"' in place.read_text()
    assert run(["profile", "list"]) == 0
    assert run(["profile", "list", "--json"]) == 0
    assert "hidden" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["x"], "--server HOST:9876"),
        (["x", "--server", "a:1", "--password"], "--password needs --user"),
        (["x", "--server", "a:1", "--key", "--access-key-file", "f"], "exclude each other"),
        (["x", "--server", "a:1", "--access-key-file", "no-such-file"], "no-such-file"),
        (["x", "--server", "a:1", "--key"], "standard input"),
    ],
)
def test_what_makes_no_sense_is_refused(
    place: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert run(["profile", "add", *words]) == 1
    assert said in capsys.readouterr().err
    assert not place.exists()
