"""Several MQTT proxies on one machine: processes that share their ports, started, watched, and stopped together.

The ports are bound here with SO_REUSEPORT, without listening, for as long as the pool lives: they stay ours while
proxies come and go, and the kernel gives connections only to those that listen. A proxy gets its configuration through
a pipe, and the end of its standard input is the end of this process.
Invariant: no proxy outlives the pool; one that dies again and again is started at most every `PAUSE_MAX_S`.
Loop rule: made and used on one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import Any

from lightmq.configuration import LogsConfig
from mqtt_proxy.config import ProxyConfig
from mqtt_proxy.listening.listener import PortUnavailable
from remoting import background
from remoting.protocol.errors import LightMQError
from runtime.config import ENVIRONMENT_PREFIX, flatten
from runtime.logs import get_logger
from runtime.metrics import Registry
from runtime.tracing_config import TracingConfig

PAUSE_MIN_S, PAUSE_MAX_S = 0.1, 5.0
"""Between two starts of a proxy that dies: doubled each time, and the least again once one has served."""
START_DEADLINE_S = 60.0
"""How long the first proxies may take until all of them serve."""
COMMAND = (sys.executable, "-m", "lightmq", "proxy", "--json", "--supervised")


NO_TRACES = TracingConfig()


class ProxyPoolMetrics:
    """What the pool counts; declared also where there is none, so that every page has the same names."""

    def __init__(self, registry: Registry) -> None:
        self.processes = registry.gauge("rocketmq_mqtt_proxy_processes", "Proxy processes that serve (--proxies)")
        self.restarts = registry.counter(
            "rocketmq_mqtt_proxy_restarts_total", "Proxy processes that ended and were started again"
        )


class ProxyPool:
    """A fixed number of proxy processes."""

    def __init__(
        self,
        config: ProxyConfig,
        logs: LogsConfig,
        metrics: ProxyPoolMetrics,
        tracing: TracingConfig = NO_TRACES,
    ) -> None:
        self._config = config
        self._given = {"logs": logs, "tracing": tracing}
        self._metrics = metrics
        self._log = get_logger("proxy_pool")
        self._reserved: list[socket.socket] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False
        self._changed = asyncio.Event()
        self._document = b""
        self.serving: dict[int, dict[str, int]] = {}
        """Number -> the ports of the proxy of that number, its process id among them."""
        self._processes: dict[int, Process] = {}
        self._ports: dict[str, int] = {}
        metrics.processes.function = lambda: len(self.serving)

    @property
    def ready(self) -> bool:
        """Whether every proxy serves."""
        return len(self.serving) == self._config.listen.processes

    def ports(self) -> dict[str, int]:
        """The shared ports by protocol."""
        return self._ports

    def status(self) -> list[dict[str, int]]:
        """Process id and administration port of each proxy that serves."""
        return [{"number": number, **self.serving[number]} for number in sorted(self.serving)]

    async def start(self) -> None:
        """Bind the ports and return when every proxy serves. PortUnavailable, LightMQError."""
        config = self._reserve()
        self._document = document({"proxy": config, **self._given})
        count = self._config.listen.processes
        self._tasks = [
            background.task(self._keep(number), f"keeps proxy process {number}") for number in range(1, count + 1)
        ]
        try:
            async with asyncio.timeout(START_DEADLINE_S):
                while not self.ready:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError as error:
            await self.stop()
            raise LightMQError(f"only {len(self.serving)} of {count} proxies came up; see their log lines") from error
        except asyncio.CancelledError:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Have every proxy send its clients away and end; what is late is killed."""
        self._stopping = True
        self.signal(signal.SIGTERM)
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=self._config.stop_s_max)
            for task in late:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._tasks = []
        for sock in self._reserved:
            sock.close()
        self._reserved = []

    def reload(self) -> None:
        """Have every proxy read its files again."""
        self.signal(signal.SIGHUP)

    def signal(self, number: int) -> None:
        """Send a signal to every proxy."""
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _reserve(self) -> ProxyConfig:
        """Bind the ports; the configuration of one proxy, with their numbers in it."""
        config = self._config
        listen = config.listen
        plain = config.plain_port
        port = None if plain is None else self._bind("mqtt", config.plain_host, plain, "--mqtt-port")
        hosts = {"tls": config.listen_host, "ws": config.plain_host, "wss": config.listen_host}
        taken: dict[str, Any] = {
            f"{name}_port": self._bind(f"mqtt-{name}", hosts[name], wanted, f"--{name}-port")
            for name in ("tls", "ws", "wss")
            if (wanted := getattr(listen, f"{name}_port")) is not None
        }
        return dataclasses.replace(
            config, port=port, admin_port=0, listen=dataclasses.replace(listen, processes=1, reuse_port=True, **taken)
        )

    def _bind(self, name: str, host: str, port: int, option: str) -> int:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind(address)
        except OSError as error:
            for each in [sock, *self._reserved]:
                each.close()
            self._reserved = []
            raise PortUnavailable(host, port, option, error) from error
        self._reserved.append(sock)
        self._ports[name] = int(sock.getsockname()[1])
        return self._ports[name]

    async def _keep(self, number: int) -> None:
        """Have a process of this number until the pool stops."""
        pause_s = PAUSE_MIN_S
        while not self._stopping:
            try:
                served = await self._run(number)
            except OSError as error:
                self._log.error("proxy_not_started", number=number, error=str(error))
                served = False
            if self._stopping:
                return
            self._metrics.restarts.value += 1
            pause_s = PAUSE_MIN_S if served else pause_s
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    async def _run(self, number: int) -> bool:
        """Run one process to its end; whether it ever served."""
        reading, writing = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *COMMAND, "--config", f"/dev/fd/{reading}", stdin=PIPE, stdout=PIPE, pass_fds=(reading,), env=_clean()
            )
        except BaseException:
            os.close(writing)
            raise
        finally:
            os.close(reading)
        self._processes[number] = process
        try:
            with contextlib.suppress(BrokenPipeError), os.fdopen(writing, "wb") as pipe:
                pipe.write(self._document)  # far below what a pipe takes without a reader
            assert process.stdout is not None
            line = await process.stdout.readline()
            if line:
                self.serving[number] = {"pid": process.pid, "admin": json.loads(line)["admin"]}
                self._log.info("proxy_started", number=number, **self.serving[number])
                self._changed.set()
            status = await process.wait()
            if not self._stopping:
                self._log.warning("proxy_ended", number=number, pid=process.pid, status=status)
            return bool(line)
        finally:
            self.serving.pop(number, None)
            del self._processes[number]
            assert process.stdin is not None
            process.stdin.close()
            if process.returncode is None:
                process.kill()
                await process.wait()


def _clean() -> dict[str, str]:
    """The environment without configuration: what is in force is in the document."""
    return {
        name: value for name, value in os.environ.items() if not (name.startswith(ENVIRONMENT_PREFIX) and "__" in name)
    }


def document(tables: dict[str, Any]) -> bytes:
    """Filled tables as TOML that reads back as the same values; what is None is left out."""
    lines = []
    for section, table in tables.items():
        for key, value in flatten(table):
            if value is not None:
                lines.append(f"{section}.{key} = {_toml(value)}")
    return "\n".join([*lines, ""]).encode()


def _toml(value: object) -> str:
    if isinstance(value, Path):
        value = str(value.absolute())
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # JSON's texts and lists are TOML's, too
