from __future__ import annotations

import json

import pytest

from lightmq.cli.application import run
from tests.conftest import RESERVED


def test_show_prints_values_and_origins(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in RESERVED:
        monkeypatch.delenv(name)
    monkeypatch.setenv("LIGHTMQ_PROXY__PORT", "7")
    assert run(["config", "show", "proxy.port", "--origin"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("proxy.port = 7 ")
    assert said.endswith("# environment LIGHTMQ_PROXY__PORT\n")
    assert run(["config", "show", "--changed", "--json", "--origin"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == {"proxy.port": {"value": 7, "origin": "environment LIGHTMQ_PROXY__PORT"}}


def test_secrets_are_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "show", "--json", "--set", "broker.access_keys=me:hunter2"]) == 0
    said = capsys.readouterr().out
    assert "hunter2" not in said
    assert json.loads(said)["broker.access_keys"] == "***"


def test_explain_a_key_and_a_section(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "explain", "up.remoting_port"]) == 0
    said = capsys.readouterr().out
    assert "int, default 9876, 0 to 65535" in said
    assert "LIGHTMQ_UP__REMOTING_PORT" in said
    assert run(["config", "explain", "broker.store"]) == 0
    assert "broker.store.flush\n" in capsys.readouterr().out
    assert run(["config", "explain", "broker.stor"]) == 2
    assert "unknown key broker.stor" in capsys.readouterr().err
    assert run(["config", "explain", "up", "--json"]) == 0
    found = {one["key"]: one for one in map(json.loads, capsys.readouterr().out.splitlines())}
    port = found["up.remoting_port"]
    assert (port["default"], port["allowed"], port["environment"]) == (
        "9876",
        "0 to 65535",
        "LIGHTMQ_UP__REMOTING_PORT",
    )
