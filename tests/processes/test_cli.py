"""The command line as people and scripts use it: real processes of the real program."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

PROGRAM = [sys.executable, "-m", "lightmq"]
ANY_PORTS = ["--mqtt-port", "0", "--remoting-port", "0", "--admin-port", "0"]
IDLE_BYTES_MAX = 120 * 1024 * 1024
HEARTBEAT_MS, PAUSE_S = 300, 4.0
"""A broker may be silent for ten heartbeats, which is shorter than the pause."""


def lightmq(*arguments: str, text: str | None = None, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *arguments], capture_output=True, text=True, input=text, timeout=timeout, check=False
    )


class Running:
    """A server process and its ports."""

    def __init__(self, log: Path, *arguments: str) -> None:
        self.log = log
        with log.open("a") as stream:
            self.process = subprocess.Popen(
                [*PROGRAM, *arguments, "--json"], stdout=subprocess.PIPE, stderr=stream, text=True
            )
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()
        assert self.line, log.read_text()
        self.ports: dict[str, int] = json.loads(self.line)

    @property
    def mqtt(self) -> list[str]:
        return ["-p", str(self.ports["mqtt"])]

    @property
    def server(self) -> list[str]:
        return ["--server", f"127.0.0.1:{self.ports['remoting']}"]

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit status; nothing more may have been printed."""
        self.process.send_signal(number)
        rest, _ = self.process.communicate(timeout=30)
        assert rest == ""
        return self.process.returncode


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path / "log", "up", "--data", str(tmp_path / "data"), *ANY_PORTS)
    yield running
    if running.process.poll() is None:
        running.process.kill()
    running.process.wait()


def test_publish_subscribe_tail_topics(up: Running) -> None:
    assert "lmq_" not in up.line, "standard output may be a log"
    file = Path(str(up.ports["console_token_file"]))
    assert (file.read_text()[:4], file.stat().st_mode & 0o777) == ("lmq_", 0o600)
    waiting = subprocess.Popen(
        [*PROGRAM, "sub", *up.mqtt, "-t", "plant/#", "--count", "2", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert waiting.stderr is not None
    assert "subscribed" in waiting.stderr.readline()
    done = lightmq("pub", *up.mqtt, "-t", "plant/a", "--stdin", "--json", text="one\ntwo\n")
    assert (done.returncode, json.loads(done.stdout)["acknowledged"]) == (0, 2)
    out, _ = waiting.communicate(timeout=30)
    assert [json.loads(line)["payload"] for line in out.splitlines()] == ["one", "two"]
    tailed = lightmq("tail", "plant/+", *up.server, "-n", "1", "--json")
    assert json.loads(tailed.stdout)["payload"] == "two"
    listed = json.loads(lightmq("topics", *up.server, "--json").stdout)
    assert (listed["topic"], listed["messages"]) == ("plant", 2)
    assert up.end() == 0


def test_kill_9_loses_nothing_acknowledged(up: Running, tmp_path: Path) -> None:
    first = lightmq("pub", *up.mqtt, "-t", "plant/a", "-m", "{n}", "--count", "500")
    assert first.returncode == 0
    up.process.kill()
    up.process.wait()
    again = Running(tmp_path / "log", "up", "--data", str(tmp_path / "data"), *ANY_PORTS)
    tailed = lightmq("tail", "plant/a", *again.server, "--offset", "0", "--json").stdout.splitlines()
    assert [json.loads(line)["payload"] for line in tailed] == [str(number) for number in range(1, 501)]
    assert again.end(signal.SIGINT) == 0


def test_idle_memory_stays_small(up: Running) -> None:
    pages = int(Path(f"/proc/{up.process.pid}/statm").read_text().split()[1])
    assert pages * resource.getpagesize() < IDLE_BYTES_MAX
    assert up.end() == 0


def test_a_failed_start_has_its_reason_on_one_line(up: Running, tmp_path: Path) -> None:
    data = str(tmp_path / "other")
    (tmp_path / "old" / "broker").mkdir(parents=True)
    (tmp_path / "old" / "broker" / "FORMAT").write_text("lightmq-store 99\n")
    (tmp_path / "bad.toml").write_text("[broker.store]\nflsh = 'sync'\n")
    cases = {
        "port": (["--data", data, *ANY_PORTS[2:], "--mqtt-port", str(up.ports["mqtt"])], "--mqtt-port 0"),
        "locked": (["--data", str(tmp_path / "data"), *ANY_PORTS], f"in use by process {up.process.pid}"),
        "version": (["--data", str(tmp_path / "old"), *ANY_PORTS], "lightmq-store 99"),
        "key": (
            ["--data", data, *ANY_PORTS, "--config", str(tmp_path / "bad.toml")],
            "did you mean broker.store.flush",
        ),
        "value": (["--data", data, "--mqtt-port", "99999"], "proxy.port must be at most 65535"),
    }
    for name, (arguments, text) in cases.items():
        done = lightmq("up", *arguments)
        last = done.stderr.splitlines()[-1]
        assert (done.returncode, done.stdout) == (1, ""), name
        assert last.startswith("lightmq: "), name
        assert text in last, name
        assert "Traceback" not in done.stderr, name


def test_users_from_a_password_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "passwords"
    assert lightmq("passwd", str(file), "ann", "--stdin", text="secret\n").returncode == 0
    assert oct(file.stat().st_mode & 0o777) == "0o600"
    data = ["--data", str(tmp_path / "data"), "--password-file", str(file)]
    up = Running(tmp_path / "log", "up", *data, *ANY_PORTS)
    try:
        publish = ["pub", *up.mqtt, "-t", "a", "-m", "x", "-u", "ann"]
        monkeypatch.setitem(os.environ, "LIGHTMQ_PASSWORD", "wrong")
        refused = lightmq(*publish)
        assert (refused.returncode, "refused the connection" in refused.stderr) == (1, True)
        monkeypatch.setitem(os.environ, "LIGHTMQ_PASSWORD", "secret")
        assert lightmq(*publish).returncode == 0
        assert "secret" not in up.log.read_text()
    finally:
        assert up.end() == 0


def test_parts_as_processes(tmp_path: Path) -> None:
    controller = Running(
        tmp_path / "log", "controller", "--data", str(tmp_path / "c"), "--remoting-port", "0", "--admin-port", "0"
    )
    address = f"127.0.0.1:{controller.ports['remoting']}"
    broker = Running(
        tmp_path / "log",
        *("broker", "--data", str(tmp_path / "b"), "--remoting-port", "0", "--admin-port", "0"),
        *("--controllers", address),
    )
    proxy = Running(tmp_path / "log", "proxy", "--mqtt-port", "0", "--admin-port", "0", "--controllers", address)
    assert lightmq("pub", *proxy.mqtt, "-t", "plant/a", "-m", "x").returncode == 0
    assert json.loads(lightmq("topics", *controller.server, "--json").stdout)["messages"] == 1
    assert [part.end() for part in (proxy, broker, controller)] == [0, 0, 0]


def test_a_pause_of_the_whole_process_is_not_taken_for_a_silent_broker(tmp_path: Path) -> None:
    """Stopped for longer than a broker may be silent, `up` continues with its broker in the routes."""
    limits = ["--set", f"broker.heartbeat_interval_ms={HEARTBEAT_MS}", "--set", "controller.liveness_scan_ms=50"]
    running = Running(tmp_path / "log", "up", "--data", str(tmp_path / "data"), *ANY_PORTS, *limits)
    try:
        for _ in range(2):
            running.process.send_signal(signal.SIGSTOP)
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.process.wait(PAUSE_S)
            running.process.send_signal(signal.SIGCONT)
            assert lightmq("pub", *running.mqtt, "-t", "plant/a", "-m", "x").returncode == 0
            assert json.loads(lightmq("topics", *running.server, "--json").stdout)["topic"] == "plant"
    finally:
        assert running.end() == 0
    assert "silent for too long" not in (tmp_path / "log").read_text()
