"""The servers of the MQTT benchmark: each is started for one measurement, on free ports, and stopped after it.

`lightmq` is `lightmq up`; `lightmq-split` runs the same parts as separate processes (controller, broker, proxy), whose
CPU is added up. mosquitto runs without a configuration file and persists nothing. amqtt's broker admits anonymous
clients; it needs an interpreter with amqtt installed (`--amqtt-python`), so that the project does not depend on it.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager

PEER_PATH = "/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin"
READY_TIMEOUT_S = 90.0

Running = tuple[int, list[int]]
"""(MQTT port, ids of all processes whose CPU and memory count)."""
Server = Callable[[str], AbstractContextManager[Running]]
"""Makes a server for one measurement; the argument is the flush mode, which only our servers use."""

AMQTT_PROGRAM = """
import asyncio, sys
from amqtt.broker import Broker
CONFIG = {
    "listeners": {"default": {"type": "tcp", "bind": "127.0.0.1:" + sys.argv[1], "max_connections": 20000}},
    "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
}
async def main():
    broker = Broker(CONFIG)
    await broker.start()
    await asyncio.Event().wait()
asyncio.run(main())
"""


@contextmanager
def _process(command: Sequence[str], *, reports_ports: bool = False) -> Iterator[tuple[int, dict[str, int]]]:
    """Run a command; yields (process id, the ports it reports)."""
    output = subprocess.PIPE if reports_ports else subprocess.DEVNULL
    child = subprocess.Popen(command, stdout=output, stderr=subprocess.DEVNULL, text=True)
    try:
        ports = json.loads(child.stdout.readline()) if child.stdout is not None else {}
        yield child.pid, ports
    finally:
        child.terminate()
        try:
            child.wait(20)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        if child.stdout is not None:
            child.stdout.close()


def _lightmq(part: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "lightmq", part, "--json", *arguments]


@contextmanager
def lightmq(flush: str) -> Iterator[Running]:
    """`lightmq up` with its log in a scratch folder."""
    with tempfile.TemporaryDirectory(prefix="lightmq-bench-") as folder:
        options = [word for name in ("mqtt", "remoting", "admin") for word in (f"--{name}-port", "0")]
        command = _lightmq("up", "--data", folder, *options, "--set", f"broker.store.flush={flush}")
        with _process(command, reports_ports=True) as (pid, ports):
            yield ports["mqtt"], [pid]


@contextmanager
def lightmq_split(flush: str) -> Iterator[Running]:
    """Controller, broker and proxy as three processes."""
    with tempfile.TemporaryDirectory(prefix="lightmq-bench-") as folder, ExitStack() as stack:
        pids = []

        def start(part: str, *arguments: str) -> dict[str, int]:
            command = _lightmq(part, *arguments, "--set", f"{part}.admin_port=0", "--set", f"{part}.port=0")
            pid, ports = stack.enter_context(_process(command, reports_ports=True))
            pids.append(pid)
            return ports

        controller = start("controller", "--set", f"controller.data_directory={folder}/controller")
        address = f"127.0.0.1:{controller['remoting']}"
        broker = start(
            "broker", "--set", f"broker.data_directory={folder}/broker", "--set", f"broker.controllers={address}",
            "--set", f"broker.store.flush={flush}",
        )  # fmt: skip
        proxy = start("proxy", "--set", f"proxy.broker=127.0.0.1:{broker['remoting']}")
        yield proxy["mqtt"], pids


@contextmanager
def mosquitto(_flush: str) -> Iterator[Running]:
    """Run mosquitto on a free port."""
    executable = shutil.which("mosquitto", path=PEER_PATH)
    assert executable is not None
    port = free_port()
    with _process([executable, "-p", str(port)]) as (pid, _ports):
        wait_listening(port)
        yield port, [pid]


def amqtt(python: str) -> Server:
    """A server that runs amqtt's broker under this interpreter."""

    @contextmanager
    def run(_flush: str) -> Iterator[Running]:
        port = free_port()
        with _process([python, "-c", AMQTT_PROGRAM, str(port)]) as (pid, _ports):
            wait_listening(port)
            yield port, [pid]

    return run


def has_mosquitto() -> bool:
    """Whether mosquitto is installed."""
    return shutil.which("mosquitto", path=PEER_PATH) is not None


def free_port() -> int:
    """A port that is currently free."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_listening(port: int) -> None:
    """Wait until something on this machine listens there."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        with socket.socket() as attempt:
            if attempt.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise TimeoutError(f"nothing listens on port {port}")
