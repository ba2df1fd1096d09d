"""Observed from outside with strace: acknowledged messages are behind a finished fdatasync."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion


def strace_works() -> bool:
    """Whether this machine has strace and lets it trace."""
    if shutil.which("strace") is None:
        return False
    return subprocess.run(["strace", "-o", "/dev/null", "true"], check=False, capture_output=True).returncode == 0


pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not strace_works(), reason="strace shows the system calls; it is missing or not permitted here"),
]
MESSAGES = 300


def test_every_acknowledgement_follows_an_fdatasync(tmp_path: Path) -> None:
    """One message at a time: at least as many finished fdatasync calls as acknowledgements, and never an error."""
    trace = tmp_path / "trace"
    command = [
        "strace",
        "-D",
        "-f",
        "-o",
        str(trace),
        "-e",
        "trace=fdatasync",
        sys.executable,
        "-m",
        "lightmq",
        "up",
        "--json",
    ]
    command += ["--data", str(tmp_path / "data")]
    for port in ("--mqtt-port", "--remoting-port", "--admin-port"):
        command += [port, "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        try:
            port = json.loads(server.stdout.readline())["mqtt"]
            client = Client(CallbackAPIVersion.VERSION2)
            client.connect("127.0.0.1", port)
            client.loop_start()
            before = trace.read_text().count("fdatasync")
            for number in range(MESSAGES):
                info = client.publish("line/one", b"%d" % number, qos=1)
                info.wait_for_publish(10)
                assert info.is_published()
            client.disconnect()
            client.loop_stop()
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(20)
    deadline = time.monotonic() + 10
    while f"{server.pid} +++ exited" not in trace.read_text() and time.monotonic() < deadline:
        time.sleep(0.05)  # strace, the process started here, writes its last lines after the server's end
    results = re.findall(r"fdatasync(?:\(\d+\)| resumed>\)) += (-?\d+)", trace.read_text())
    assert set(results) == {"0"}
    assert len(results) - before >= MESSAGES
