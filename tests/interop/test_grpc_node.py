"""RocketMQ's own Node.js gRPC client against `lightmq up` with a port for gRPC."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from remoting.client.blocking import BlockingConnection
from remoting.transport.signature import Signer
from tests.interop.grpc_topics import prepare, secured
from tests.processes.rig import Installation
from tests.support.certificates import HAVE_OPENSSL, Authority

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


FOUND = {
    "simple": ["0", "1", "2"],
    "push": ["0", "1", "1", "2"],
    "fifo": ["0", "1", "2", "3"],
    "delayed": ["delivered"],
    "priority": ["2", "1"],
    "transactions": ["commit", "leave"],
    "lite": ["0", "1", "2"],
}


def outcome(package: Path, folder: Path, endpoint: str, *scenarios: str, **variables: str) -> dict[str, Any]:
    """What happened in each scenario."""
    done = subprocess.run(
        ["node", str(PROGRAM), str(package), endpoint, *scenarios],
        env={**os.environ, "HOME": str(folder), **variables}, capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2_000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_node_client_does_what_it_can(tmp_path: Path) -> None:
    package = installed()
    server = Installation(tmp_path / "data", "--grpc-port", "0", "--set", "broker.transaction_check_after_ms=1000")
    server.start()
    try:
        prepare(lambda: BlockingConnection.dial(server.address, 10_000))
        assert outcome(package, tmp_path, f"127.0.0.1:{server.ports['grpc']}", *FOUND) == FOUND
    finally:
        server.kill_if_running()


@pytest.mark.skipif(not HAVE_OPENSSL, reason="certificates are made with openssl")
def test_the_node_client_signs_its_calls_and_speaks_tls(tmp_path: Path) -> None:
    package, authority = installed(), Authority(tmp_path / "tls")
    server = Installation(tmp_path / "data", *secured(authority.issue(), tmp_path / "rules"))
    server.start()
    try:
        prepare(lambda: BlockingConnection.dial(server.address, 10_000, signer=Signer("ops", "o")))
        endpoint = f"localhost:{server.ports['grpc']}"
        tls = {"MQ_TLS": "1", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(authority.certificate), "MQ_KEY": "ann"}
        found = outcome(package, tmp_path, endpoint, "simple", **tls, MQ_SECRET="a")
        assert found == {"simple": FOUND["simple"]}
        assert "Failed to fetch" in outcome(package, tmp_path, endpoint, "simple", **tls, MQ_SECRET="b")["simple"]
    finally:
        server.kill_if_running()
