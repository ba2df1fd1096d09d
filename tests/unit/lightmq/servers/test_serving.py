"""Tests."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import socket
from pathlib import Path

import pytest

from lightmq.configuration import LogsConfig
from lightmq.servers.serving import DirectoryUnusable, PortTaken, check_free, explain, prepare, serve


class Part:
    def __init__(self, *, hang: bool = False, fail: bool = False) -> None:
        self.story: list[str] = []
        self._hang, self._fail = hang, fail

    async def start(self) -> None:
        self.story.append("start")
        asyncio.get_running_loop().call_later(0.01, os.kill, os.getpid(), signal.SIGTERM)
        if self._hang:
            try:
                await asyncio.Event().wait()
            finally:
                self.story.append("cancelled")
        if self._fail:
            raise OSError("cannot")

    async def stop(self) -> None:
        self.story.append("stop")

    def ports(self) -> dict[str, int]:
        return {"mqtt": 5}

    def notes(self) -> dict[str, str]:
        return {"token": "t"}

    def reload(self) -> None:
        self.story.append("reload")

    def unready(self) -> dict[str, str]:
        return {}

    async def until_failed(self) -> Exception:
        return await asyncio.get_running_loop().create_future()


class BrokenPart(Part):
    async def start(self) -> None:
        self.story.append("start")

    async def until_failed(self) -> Exception:
        await asyncio.sleep(0)
        return OSError("the disk is gone")


class WaitingPart(Part):
    """Starts only after its state was asked for three times."""

    def __init__(self) -> None:
        super().__init__()
        self._asked = 0

    async def start(self) -> None:
        await asyncio.Event().wait()

    def unready(self) -> dict[str, str]:
        self._asked += 1
        if self._asked == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return {"proxy": "no broker"}


def run(part: Part, *, json_output: bool = True) -> None:
    serve(
        lambda: part,
        settings=LogsConfig(),
        json_output=json_output,
        greeting=lambda ports, notes: f"hello {ports['mqtt']} {notes['token']}",
    )


@pytest.fixture(autouse=True)
def _quiet_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.process.settle_garbage", lambda: None)


def test_what_is_not_ready_is_logged_again_and_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also while a start hangs, when there is no administration port yet."""
    monkeypatch.setattr("lightmq.servers.serving.REMIND_S", 0.001)
    run(WaitingPart())
    assert capsys.readouterr().err.count('not_ready part=proxy reason="no broker"') >= 2
    run(Part())
    assert "not_ready" not in capsys.readouterr().err


def test_ports_are_said_once_and_a_signal_ends_cleanly(capsys: pytest.CaptureFixture[str]) -> None:
    part = Part()
    run(part)
    assert part.story == ["start", "stop"]
    assert json.loads(capsys.readouterr().out) == {"mqtt": 5, "token": "t"}


def test_a_hangup_reloads_and_continues() -> None:
    part = Part()
    previous = signal.getsignal(signal.SIGHUP)
    os_start = part.start

    async def start() -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        await os_start()

    part.start = start  # type: ignore[method-assign]
    run(part)
    signal.signal(signal.SIGHUP, previous)
    assert part.story == ["start", "reload", "stop"]


def test_people_get_a_greeting(capsys: pytest.CaptureFixture[str]) -> None:
    run(Part(), json_output=False)
    assert capsys.readouterr().out == "hello 5 t\n"


def test_a_signal_while_starting_ends_it(capsys: pytest.CaptureFixture[str]) -> None:
    part = Part(hang=True)
    run(part)
    assert part.story == ["start", "cancelled"]
    assert capsys.readouterr().out == ""


def test_what_start_raises_is_raised() -> None:
    part = Part(fail=True)
    old = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with pytest.raises(OSError, match="cannot"):
            run(part)
    finally:
        signal.signal(signal.SIGTERM, old)
    assert part.story[0] == "start"


def test_a_service_that_cannot_continue_is_stopped_and_its_reason_is_raised() -> None:
    part = BrokenPart()
    with pytest.raises(OSError, match="the disk is gone"):
        run(part)
    assert part.story == ["start", "stop"]


def test_a_free_port_passes_and_is_free_afterwards() -> None:
    check_free("127.0.0.1", 0, "--port")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    check_free("127.0.0.1", port, "--port")
    check_free("127.0.0.1", port, "--port")


def test_a_port_in_use_names_port_option_and_remedy() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PortTaken) as raised:
            check_free("127.0.0.1", port, "--mqtt-port")
    assert f"port {port} is already in use" in str(raised.value)
    assert "--mqtt-port 0" in str(raised.value)


def test_other_reasons_are_reported_too() -> None:
    assert "above 1023" in str(explain("h", 80, "--port", OSError(errno.EACCES, "Permission denied")))
    assert "No such device" in str(explain("h", 80, "--port", OSError(errno.ENODEV, "No such device")))
    with pytest.raises(PortTaken, match=r"203\.0\.113\.1"):
        check_free("203.0.113.1", 1234, "--port")


def test_a_directory_is_made_and_left_empty(tmp_path: Path) -> None:
    prepare(tmp_path / "a" / "b", "--data")
    prepare(tmp_path / "a" / "b", "--data")
    assert not list((tmp_path / "a" / "b").iterdir())


def test_what_is_in_the_way_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DirectoryUnusable, match=r"file cannot be used .* choose another with --data"):
        prepare(tmp_path / "file", "--data")
    with pytest.raises(DirectoryUnusable):
        prepare(tmp_path / "file" / "below", "--data")
