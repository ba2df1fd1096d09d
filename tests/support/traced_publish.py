"""Prints the product's files that run between a PUBLISH on a socket and the write to the log, in order of first use.

    LIGHTMQ_PURE=1 python -m tests.support.traced_publish {inprocess,tcp}

With the plain sources, because compiled modules show no calls. What else runs at the moment (registration, timers,
other writes) disturbs few rounds: a file counts that runs in most of them.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import FrameType

from lightmq.configuration import Configuration, UpConfig
from lightmq.servers.all_in_one import AllInOne
from mqtt_proxy.app import ProxyApp
from mqtt_proxy.config import ProxyConfig
from runtime.clock import SystemClock
from runtime.metrics import Registry

ROOT = f"{Path(__file__).parents[2]}{os.sep}"
CONNECT = b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x01d"
ROUNDS = 8


class Trace:
    """The files in which functions are called from the first of the proxy's listening side to a `pwrite`."""

    def __init__(self) -> None:
        self.files: dict[str, None] = {}
        self._is_on = self._is_over = False

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            name = frame.f_code.co_filename
            self._is_on = self._is_on or name.endswith("stream_connection.py")
            if self._is_on and not self._is_over and name.startswith(ROOT):
                self.files[name[len(ROOT) :]] = None
        elif event == "c_call" and getattr(argument, "__name__", "") in ("pwrite", "pwritev"):
            self._is_over = self._is_over or self._is_on


async def traced(port: int) -> list[str]:
    """The files that run for most of several publishes to a topic that exists."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(CONNECT)
    await reader.readexactly(4)
    traces = []
    for number in range(1, ROUNDS + 1):
        trace = Trace()
        sys.setprofile(trace)
        writer.write(b"\x32\x08\x00\x03a/b" + number.to_bytes(2, "big") + b"x")
        await reader.readexactly(4)
        sys.setprofile(None)
        traces.append(trace.files)
    writer.close()
    seen = Counter(file for files in traces[1:] for file in files)
    return [file for file, rounds in seen.items() if rounds > ROUNDS // 2]


async def main(by_tcp: bool, directory: Path) -> None:
    """Start an installation, for TCP with a proxy that connects to its broker by the port, and print."""
    up = UpConfig(data_directory=directory, remoting_port=0, admin_port=0)
    everything = AllInOne(Configuration(up=up, proxy=ProxyConfig(port=0)))
    await everything.start()
    ports = everything.ports()
    if by_tcp:
        config = ProxyConfig(port=0, broker=f"127.0.0.1:{ports['remoting']}")
        proxy = ProxyApp(config, clock=SystemClock(), registry=Registry())
        await proxy.start()
        files = await traced(proxy.ports()["mqtt"])
        await proxy.stop()
    else:
        files = await traced(ports["mqtt"])
    await everything.stop()
    sys.stdout.write("\n".join(files) + "\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        asyncio.run(main(sys.argv[1] == "tcp", Path(made)))
