"""Seen from outside with strace: acknowledged messages are behind a finished fdatasync."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace shows the system calls"),
]
MESSAGES = 300


def test_every_acknowledgement_follows_an_fdatasync(tmp_path: Path) -> None:
    """One message at a time: at least as many finished fdatasync calls as acknowledgements, and never an error."""
    trace = tmp_path / "trace"
    command = [
        "strace",
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
    results = re.findall(r"fdatasync(?:\(\d+\)| resumed>\)) += (-?\d+)", trace.read_text())
    assert set(results) == {"0"}
    assert len(results) - before >= MESSAGES
