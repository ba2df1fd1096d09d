"""The official RocketMQ client works with `lightmq up`: routes, send, rebalance, pull, offsets.

The client is the PyPI package `rocketmq` (C++ SDK inside). Its package has the same import name as others of its kind,
so it lives in an environment of its own: LIGHTMQ_ROCKETMQ_PYTHON names that environment's interpreter.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PYTHON = os.environ.get("LIGHTMQ_ROCKETMQ_PYTHON")
CLIENT = Path(__file__).with_name("rocketmq_client.py")

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(PYTHON is None, reason="LIGHTMQ_ROCKETMQ_PYTHON names no interpreter that has rocketmq==0.4.4"),
]


@pytest.fixture
def remoting_port(tmp_path):
    """The remoting port of a `lightmq up` of this test."""
    free = ("--mqtt-port", "0", "--remoting-port", "0", "--admin-port", "0")
    command = (sys.executable, "-m", "lightmq", "up", "--data", str(tmp_path / "data"), *free, "--json")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=CLIENT.parents[2]) as process:
        yield json.loads(process.stdout.readline())["remoting"]
        process.terminate()


def test_messages_come_back(remoting_port):
    command = (PYTHON, str(CLIENT), f"127.0.0.1:{remoting_port}", "interop", "20")
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "received 20 of 20" in result.stdout
