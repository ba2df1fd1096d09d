"""A small factory for the console to show: devices with readings, a group that is behind, things kept and delayed."""

from __future__ import annotations

import asyncio
import json
import math
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

from remoting.client.blocking import BlockingConnection
from remoting.client.connection import dial
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.commands import Command
from tests.processes.rig import Client, Server
from tests.support.letters import give_up

LINES, MACHINES = 3, ("press", "oven", "robot")
SENSORS = {"temperature": 48.0, "vibration_mm_s": 2.4, "power_kw": 11.0}
PERIOD_S = 0.25
GROUP = "billing"


def api(server: Server, method: str, path: str, body: Any = None) -> Any:
    """Ask the HTTP API as a program does, with the administrator's token."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.ports['admin']}/api/v1{path}",
        data=None if body is None else json.dumps(body).encode(),
        method=method,
        headers={"Authorization": f"Bearer {server.console_token}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        text = answer.read()
    return json.loads(text) if text else None


class Plant:
    """Devices that publish until the end; each subscribes to its commands."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._devices = {
            f"line-{line}/{machine}": Client(server, f"{machine}-{line}", clean=line == 1)
            for line in range(1, LINES + 1)
            for machine in MACHINES
        }
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="plant")

    def __enter__(self) -> Self:
        for place, device in self._devices.items():
            device.subscribe((f"plant/{place}/commands", 1))
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        for device in self._devices.values():
            device.close()

    def _run(self) -> None:
        turn = 0
        while not self._ended.wait(PERIOD_S):
            turn += 1
            for number, (place, device) in enumerate(self._devices.items()):
                for sensor, base in SENSORS.items():
                    value = round(base * (1 + 0.1 * math.sin(turn / (5 + number)) + 0.02 * math.sin(turn * 1.7)), 2)
                    reading = json.dumps({"value": value, "machine": place})
                    device.client.publish(f"plant/{place}/{sensor}", reading, qos=1, retain=turn == 1)
            if turn % 12 == 0:
                command = json.dumps({"id": f"command-{turn}", "act": "cool down", "deviation": 4.2})
                device.client.publish("plant/line-1/press/commands", command, qos=1)

    def furnish(self) -> None:
        """What waits and what was given up, beside what flows."""
        server, port = self._server, self._server.ports["remoting"]
        self._devices["line-3/robot"].publish("orders/new", b'{"order": 1}')
        for number in range(3):
            body = {
                "topic": f"plant/line-{number + 1}/press/commands",
                "payload": "{}",
                "delay_ms": 600_000 * (number + 1),
            }
            api(server, "POST", "/messages", body)
        for queue in range(4):
            fields = {"consumerGroup": GROUP, "topic": "plant", "queueId": str(queue), "commitOffset": "1"}
            ask_plain(port, Code.UPDATE_CONSUMER_OFFSET, **fields)
        with BlockingConnection("127.0.0.1", port) as connection:
            give_up(connection, GROUP, b'{"order": 7}', b'{"order": 8}')


def ask_plain(port: int, code: int, **fields: str) -> None:
    """A request whose answer has no body; a refusal fails."""

    async def asked() -> Command:
        connection = await dial(f"127.0.0.1:{port}")
        try:
            return await connection.request(Command(code, fields=fields))
        finally:
            await connection.close()

    # Playwright has a loop of its own in the thread of the tests.
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(lambda: asyncio.run(asked())).result()
    assert answer.code == 0, answer.remark
