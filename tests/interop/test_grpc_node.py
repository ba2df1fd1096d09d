"""RocketMQ's own Node.js gRPC client against `lightmq up` with a port for gRPC."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes.rig import ROOT, Installation

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(300)]
PROGRAM = Path(__file__).with_name("node") / "grpc_features.js"
PACKAGE = "rocketmq-client-nodejs@1.0.8"


def installed() -> Path:
    """The folder with the package, in the user's cache; skips the test where it cannot be installed."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "lightmq" / PACKAGE.replace("@", "-")
    if not (folder / "complete").exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--ignore-scripts", PACKAGE]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
        if done.returncode != 0:
            pytest.skip(f"{PACKAGE} cannot be installed: {done.stderr[-300:]}")
        (folder / "complete").touch()
    return folder


def test_the_node_client_sends_and_receives(tmp_path: Path) -> None:
    package = installed()
    server = Installation(tmp_path / "data", "--grpc-port", "0")
    server.start()
    try:
        create = [sys.executable, "-m", "lightmq", "topics", "create", "orders", "--server", server.address]
        subprocess.run(create, check=True, capture_output=True, cwd=ROOT)
        endpoint = f"127.0.0.1:{server.ports['grpc']}"
        done = subprocess.run(
            ["node", str(PROGRAM), str(package), endpoint], env={**os.environ, "HOME": str(tmp_path)},
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2_000:]
        found = json.loads(done.stdout.splitlines()[-1])
        assert found == {"received": ["0", "1", "2", "3"], "pushed": ["0", "1", "2", "3"]}
    finally:
        server.kill_if_running()
