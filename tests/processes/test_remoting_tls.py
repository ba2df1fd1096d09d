"""The remoting protocol over TLS between real processes: controller, broker with readers, proxy, command line."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from broker.store.attached.store import in_order
from remoting.client.blocking import BlockingConnection, cluster
from remoting.client.tls import ClientTls
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.failures import ConnectionLost, TlsFailed
from tests.processes.rig import DEADLINE_S, ROOT, Client, Process, Server, no_traceback
from tests.support.certificates import HAVE_OPENSSL, Authority, Identity

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(180),
    pytest.mark.skipif(not HAVE_OPENSSL, reason="makes its certificates with openssl"),
]


def listening(section: str, identity: Identity, mode: str = "enforcing") -> list[str]:
    values = {"mode": mode, "certificate": identity.certificate, "key": identity.key}
    return [text for key, value in values.items() for text in ("--set", f"{section}.tls.{key}={value}")]


def dialling(section: str, authority: Authority) -> list[str]:
    return ["--set", f"{section}.dial_tls.enabled=true", "--set", f"{section}.dial_tls.ca={authority.certificate}"]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "certificates")


@pytest.fixture
def processes() -> Iterator[Callable[[Server], Server]]:
    """Start a process that ends with the test."""
    with ExitStack() as stack:

        def start(process: Server) -> Server:
            process.start()
            stack.callback(process.kill_if_running)
            return process

        yield start


def lightmq(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lightmq", *arguments],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


class Parts:
    """Controller, broker (with a reader where possible) and proxy, each a process; all enforce TLS."""

    def __init__(self, folder: Path, authority: Authority, start: Callable[[Server], Server]) -> None:
        identity = authority.issue()
        arguments = ["controller", "--data", str(folder / "metadata"), *listening("controller", identity)]
        self.controller = start(Process(folder / "controller", arguments, "remoting"))
        self.controllers = f"127.0.0.1:{self.controller.port}"
        arguments = ["broker", "--data", str(folder / "data"), "--controllers", self.controllers]
        arguments += ["--readers", "1"] if in_order() else []
        arguments += [*listening("broker", identity), *dialling("broker", authority)]
        self.broker = start(Process(folder / "broker", arguments, "remoting"))
        arguments = ["proxy", "--set", f"proxy.controllers={self.controllers}", *dialling("proxy", authority)]
        self.proxy = start(Process(folder / "proxy", arguments, "mqtt"))

    def all(self) -> list[Server]:
        return [self.controller, self.broker, self.proxy]


def ask_topics(controllers: str, *options: str) -> subprocess.CompletedProcess[str]:
    return lightmq("topics", "--server", controllers, *options)


def test_every_part_connects_by_tls(
    authority: Authority, processes: Callable[[Server], Server], tmp_path: Path
) -> None:
    """Broker to controller, proxy to both, readers, command line; without TLS or trust they could not."""
    parts = Parts(tmp_path, authority, processes)
    device = Client(parts.proxy, "device")
    device.subscribe(("plant/#", 1))
    device.publish("plant/7", b"over two hops of TLS")
    device.until(lambda: device.latest.get("plant/7") == b"over two hops of TLS")
    device.close()
    said = ask_topics(parts.controllers, "--tls", "--tls-ca", str(authority.certificate))
    assert said.returncode == 0, said.stderr
    assert "plant" in said.stdout
    stranger = Authority(tmp_path / "stranger").certificate
    refused = ask_topics(parts.controllers, "--tls", "--tls-ca", str(stranger))
    assert refused.returncode != 0
    assert "no TLS with" in refused.stderr
    plain = ask_topics(parts.controllers)
    assert plain.returncode != 0
    assert "TLS only" in plain.stderr
    for port in [parts.controller.port, *(port for name, port in parts.broker.ports.items() if name != "admin")]:
        until_served(port, ClientTls(ca_file=authority.certificate))
        with BlockingConnection("127.0.0.1", port) as connection:
            assert connection.request(Command(64_000)).code == ResponseCode.NO_PERMISSION
    for server in reversed(parts.all()):
        assert server.end(signal.SIGTERM) == 0
        no_traceback(server)


def looked_at(controllers: str, *options: str) -> dict[str, str]:
    """The findings of `lightmq doctor` about the broker."""
    found = lightmq("doctor", "--json", "--server", controllers, *options)
    findings = json.loads(found.stdout)["findings"]
    return next(finding for finding in findings if finding["name"] == "broker")


def test_the_doctor_connects_by_tls(
    authority: Authority, processes: Callable[[Server], Server], tmp_path: Path
) -> None:
    """With the options or the configuration for it; otherwise it names what is missing."""
    parts = Parts(tmp_path, authority, processes)
    trusting = ["--tls", "--tls-ca", str(authority.certificate)]
    assert looked_at(parts.controllers, *trusting)["state"] == "ok"
    assert looked_at(parts.controllers, *dialling("broker", authority))["state"] == "ok"
    assert "--tls-ca" in looked_at(parts.controllers, "--tls")["remedy"]
    assert "--tls" in looked_at(parts.controllers)["remedy"]
    assert looked_at(f"127.0.0.1:1,{parts.controllers}", *trusting)["state"] == "ok", "the first one that answers"


def until_served(port: int, tls: ClientTls) -> None:
    """A reader process opens its port a moment after the broker has advertised it."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            with BlockingConnection("127.0.0.1", port, tls=tls) as connection:
                assert connection.request(Command(64_000)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        except ConnectionLost:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        else:
            return


def test_one_port_for_both_and_a_new_certificate_without_a_disconnect(
    authority: Authority, processes: Callable[[Server], Server], tmp_path: Path
) -> None:
    """`lightmq up`, permissive: plain and TLS at one port; SIGHUP renews the certificate under an open connection."""
    identity = authority.issue()
    server = processes(Server(tmp_path / "data", *listening("broker", identity, "permissive")))
    port = server.ports["remoting"]
    with BlockingConnection("127.0.0.1", port) as plain:
        assert cluster(plain).broker_addr_table
    with BlockingConnection("127.0.0.1", port, tls=ClientTls(ca_file=authority.certificate)) as first:
        assert cluster(first).broker_addr_table
        other = Authority(tmp_path / "other")
        replacement = other.issue()
        shutil.copy(replacement.certificate, identity.certificate)
        shutil.copy(replacement.key, identity.key)
        assert server.process is not None
        server.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + DEADLINE_S
        shown = None
        while shown is None:
            assert time.monotonic() < deadline, server.log.read_text()[-2_000:]
            try:
                with BlockingConnection("127.0.0.1", port, tls=ClientTls(ca_file=other.certificate)) as second:
                    shown = cluster(second)
            except TlsFailed:
                continue
        assert cluster(first).broker_addr_table
    assert server.end(signal.SIGTERM) == 0
    no_traceback(server)
