"""What servers refuse is never reported as done: `pub` and `sub` against real servers, for every reason there is."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes.rig import ROOT, Server

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

ACCESS = "topic readwrite plant/ok/#\ntopic read plant/read/#\n"
NO_RETRY_S = "5"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("refusals")
    (folder / "acl").write_text(ACCESS)
    quota = "proxy.quotas.retained_payload_bytes_max=10"
    server = Server(folder / "data", "--acl-file", str(folder / "acl"), "--set", quota)
    server.start()
    yield server
    server.kill_if_running()


def lightmq(*arguments: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "lightmq", *arguments], capture_output=True, text=True, timeout=60, check=False, cwd=ROOT
    )
    return done.returncode, done.stdout, done.stderr


def pub(server: Server, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """Exit status, the JSON line and the error."""
    status, out, err = lightmq("pub", "-p", str(server.port), "--json", "--timeout", NO_RETRY_S, *arguments)
    return status, json.loads(out), err


def stored(server: Server, topic: str) -> int:
    status, out, _ = lightmq("tail", topic, "-s", f"127.0.0.1:{server.ports['remoting']}", "-n", "1000", "--json")
    return len(out.splitlines()) if status == 0 else 0


@pytest.mark.parametrize("qos", ["1", "2"])
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("-t", "plant/denied", "-m", "x"), "not authorized (0x87)"),
        (("-t", "$SYS/x", "-m", "x"), "not authorized (0x87)"),
        (("-t", "plant/ok/a", "-m", "x", "-P", "delay-ms=99999999999"), "quota exceeded (0x97)"),
        (("-t", "plant/ok/r", "-m", "longer than ten bytes", "--retain"), "quota exceeded (0x97)"),
    ],
    ids=["denied", "sys", "delay", "retained"],
)
def test_a_refused_publish_is_not_reported_as_success(
    up: Server, options: tuple[str, ...], reason: str, qos: str
) -> None:
    status, said, error = pub(up, "-V", "5", "-q", qos, *options)
    assert (status, said["acknowledged"], said["refused"]) == (1, 0, 1)
    assert [each.partition(":")[0] for each in said["reasons"]] == [reason]
    assert f"the server refused the message: {reason}" in error
    assert stored(up, options[1]) == 0


@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_under_3_1_1_the_end_names_the_likely_causes(up: Server, qos: str) -> None:
    status, said, error = pub(up, "-q", qos, "-t", "plant/denied", "-m", "x")
    assert (status, said.get("acknowledged", 0)) == (1, 0)
    assert "likely causes: the access list denies it, the disk is full, a quota" in error
    assert said["error"] in error


@pytest.mark.parametrize("version", ["3.1.1", "5"])
@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_an_accepted_publish_is_a_success(up: Server, version: str, qos: str) -> None:
    topic = f"plant/ok/{version}-{qos}"
    status, said, error = pub(up, "-V", version, "-q", qos, "-t", topic, "-m", "{n}", "--count", "20")
    assert (status, error) == (0, "")
    assert said.get("acknowledged", said.get("sent")) == 20
    assert stored(up, topic) == 20


@pytest.mark.parametrize(
    ("version", "reason"),
    [("3.1.1", "unspecified error (0x80); MQTT 3.1.1 does not say why"), ("5", "not authorized (0x87)")],
)
def test_a_refused_subscription_is_reported(up: Server, version: str, reason: str) -> None:
    status, out, error = lightmq("sub", "-p", str(up.port), "-V", version, "-t", "plant/ok/#", "-t", "plant/denied")
    assert (status, out) == (1, "")
    assert "the server refused to subscribe to plant/denied: " in error
    assert reason.partition(";")[0] in error
    assert "it granted plant/ok/#" in error


def subscriber(server: Server, *options: str) -> subprocess.Popen[str]:
    """`sub`, once it has its subscription."""
    arguments = [sys.executable, "-m", "lightmq", "sub", "-p", str(server.port), "-t", "plant/ok/#", *options]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stderr is not None
    assert "subscribed" in process.stderr.readline()
    return process


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, error = process.communicate(timeout=60)
    return process.returncode, error


@pytest.mark.parametrize(("version", "words"), [("5", "session taken over (0x8e)"), ("3.1.1", "the same client id")])
def test_a_session_taken_over_ends_sub(up: Server, version: str, words: str) -> None:
    first = subscriber(up, "-V", version, "--client-id", f"twin-{version}")
    second = subscriber(up, "-V", version, "--client-id", f"twin-{version}")
    status, error = ended(first)
    assert (status, words in error) == (1, True), error
    second.send_signal(signal.SIGINT)
    assert ended(second)[0] == 130


def test_the_stop_of_a_server_is_reported(tmp_path: Path) -> None:
    server = Server(tmp_path / "data")
    server.start()
    try:
        waiting = subscriber(server, "-V", "5")
        assert server.end(signal.SIGTERM) == 0
        status, error = ended(waiting)
        assert (status, "server shutting down (0x8b)" in error) == (1, True), error
    finally:
        server.kill_if_running()


@pytest.mark.parametrize("version", ["3.1.1", "5"])
def test_a_full_disk_is_not_reported_as_success(tmp_path: Path, version: str) -> None:
    server = Server(tmp_path / "data", "--set", f"broker.store.free_space_bytes_min={1 << 60}")
    server.start()
    try:
        status, out, error = lightmq("pub", "-p", str(server.port), "-V", version, "-t", "plant/a", "-m", "x")
        assert (status, out) == (1, "")
        assert "disk is full" in error
        assert stored(server, "plant/a") == 0
    finally:
        server.kill_if_running()
