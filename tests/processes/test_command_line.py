"""Load, live figures, times and profiles of the command line, against a real installation."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightmq.cli.application import run
from tests.processes.rig import Installation, no_traceback

pytestmark = pytest.mark.processes

PROGRAM = [sys.executable, "-m", "lightmq"]
ALTERNATE_SCREEN, NORMAL_SCREEN, CURSOR_SHOWN = b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?25h"
DRAWN_S = 30.0


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installation]:
    made = Installation(tmp_path / "data")
    made.start()
    monkeypatch.setenv("LIGHTMQ_PROFILES", str(tmp_path / "profiles.toml"))
    monkeypatch.setenv("LIGHTMQ_SERVER", made.address)
    monkeypatch.setenv("LIGHTMQ_MQTT_PORT", str(made.ports["mqtt"]))
    yield made
    made.kill_if_running()
    no_traceback(made)


def test_a_load_is_counted(server: Installation, capsys: pytest.CaptureFixture[str]) -> None:
    load = ["--publishers", "2", "--subscribers", "2", "--rate", "200", "--duration", "500ms"]
    for words in (["mqtt"], ["mqtt", "--qos", "2"], ["rocketmq"]):
        assert run(["bench", *words, *load, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["sent"], found["acknowledged"], found["received"]) == (100, 100, 200)
        assert (found["expected"], found["lost"], found["repeated"]) == (200, 0, 0)
        assert 0 < found["received_ms"]["p50"] <= found["received_ms"]["max"]
    assert run(["bench", "mqtt", "--rate", "0", "--duration", "500ms"]) == 0
    assert "lost 0, repeated 0" in capsys.readouterr().out
    assert run(["bench", "mqtt", "--size", "8"]) == 2
    assert "--size must be 24" in capsys.readouterr().err


@pytest.mark.parametrize("protocol", ["mqtt", "rocketmq"])
def test_ctrl_c_ends_a_load_early_with_its_figures(server: Installation, protocol: str) -> None:
    words = ["bench", protocol, "--rate", "100", "--duration", "10m", "--json"]
    process = subprocess.Popen([*PROGRAM, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        assert "Ctrl-C ends early" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    found = json.loads(out)
    assert (process.returncode, found["lost"], found["unanswered"]) == (0, 0, 0)
    assert found["received"] == found["acknowledged"]


def test_top_without_a_terminal(server: Installation, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["pub", "-t", "plant/a", "-m", "x"]) == 0
    assert run(["top", "--count", "2", "--interval", "200ms"]) == 0
    said = capsys.readouterr().out
    assert said.count("BROKER") == 2
    assert "\x1b" not in said
    assert run(["top", "--count", "1", "--interval", "200ms", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["brokers"]
    assert (row["topics"], row["clients"], row["messages_in_per_s"]) == (1, 0, 0.0)
    assert row["log_bytes"] > 0
    assert run(["top", "--interval", "1ms"]) == 2


def test_top_leaves_the_terminal_as_it_was(server: Installation) -> None:
    """On the alternate screen with the cursor hidden while it runs; back, and the cursor shown, after Ctrl-C."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    process = subprocess.Popen([*PROGRAM, "top"], stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    while b"broker" not in shown.lower() or b"Ctrl-C ends" not in shown:
        assert select.select([ours], [], [], DRAWN_S)[0], shown
        shown += os.read(ours, 65_536)
    process.send_signal(signal.SIGINT)
    try:
        while chunk := os.read(ours, 65_536):
            shown += chunk
    except OSError:
        pass  # the other side is closed
    os.close(ours)
    assert process.wait(30) == 130
    assert shown.index(ALTERNATE_SCREEN) < shown.rindex(NORMAL_SCREEN)
    assert shown.rindex(b"\x1b[?25l") < shown.rindex(CURSOR_SHOWN)
    assert b"BROKER" in shown[shown.rindex(NORMAL_SCREEN) :]


def test_times_and_profiles(
    server: Installation, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LIGHTMQ_SERVER")
    assert run(["profile", "add", "here", "--server", server.address]) == 0
    assert run(["clients"]) == 0
    assert capsys.readouterr().err == "no client is connected\n"
    for number in range(3):
        assert run(["pub", "-t", "plant/a", "-m", str(number), "--retain"]) == 0
    assert run(["tail", "plant/#", "--since", "10m", "--json"]) == 0
    stored = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["payload"] for one in stored] == ["0", "1", "2"]
    for name in ("plant/a", "plant/#"):
        assert run(["tail", name, "--since", str(stored[-1]["stored_ms"]), "--json"]) == 0
        assert json.loads(capsys.readouterr().out.splitlines()[-1])["payload"] == "2"
    assert run(["tail", "plant/a", "--since", "tomorrow"]) == 0
    assert "no message" in capsys.readouterr().err
    assert run(["retained"]) == 0
    shown = capsys.readouterr().out.splitlines()[-1]
    assert "now" in shown or "ago" in shown
