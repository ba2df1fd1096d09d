"""A fork of the warm process is the command line: its arguments, variables, output, errors and status."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.support.warm import WarmServer, suits

PORTS = ["--mqtt-port", "0", "--remoting-port", "0", "--admin-port", "0"]


def started(tmp_path: Path, *arguments: str, **variables: str) -> WarmServer:
    return WarmServer(arguments, folder=tmp_path, log=tmp_path / "log", variables={**os.environ, **variables})


def test_it_serves_in_its_folder_until_a_signal(tmp_path: Path) -> None:
    server = started(tmp_path, "up", "--data", "data", *PORTS, "--json", LIGHTMQ_LOGS__LEVEL="debug")
    assert set(json.loads(server.stdout.readline())) >= {"mqtt", "remoting", "admin"}
    assert (tmp_path / "data" / "broker").is_dir()
    assert server.poll() is None
    server.send_signal(signal.SIGTERM)
    assert server.wait(30) == 0
    assert server.stdout.read() == ""
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_a_kill_is_its_status(tmp_path: Path) -> None:
    server = started(tmp_path, "up", "--data", "data", *PORTS, "--json")
    assert server.stdout.readline()
    server.kill()
    assert server.wait(30) == -signal.SIGKILL
    server.kill()  # it has ended


def test_a_failed_start_has_its_reason(tmp_path: Path) -> None:
    server = started(tmp_path, "up", "--data", "data", "--set", "broker.store.flsh=sync")
    assert server.wait(30) == 1
    assert server.stdout.readline() == ""
    assert "did you mean broker.store.flush" in (tmp_path / "log").read_text()


def test_what_is_decided_at_import_needs_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LIGHTMQ_PURE", raising=False)
    assert suits({**os.environ, "LIGHTMQ_FAULTS": "log.fsync=EIO@40*0"})
    assert not suits({**os.environ, "LIGHTMQ_PURE": "1"})
