"""`/live`: a WebSocket that shows the messages of a filter as they come, and some from before.

    client -> {"subscribe": "plant/#", "history": 20}   begins, in place of what was subscribed before
              {"unsubscribe": "plant/#"}                 ends
    server -> {"subscribed": "plant/#"}                  from here on
              {"message": {topic, payload, encoding, qos, retain, time_ms, offset, message_id, properties, ...}}
              {"dropped": n}                             so many since the last time were not shown
              {"problem": {"reason": ..., "detail": ...}}

A task reads the log, another one writes to the socket; between them is a queue of fixed length. A viewer that is too
slow, or a filter that is too busy, loses messages here, and is told how many; nobody else is slowed down, and nothing
is lost in the log. Every read is made in the viewer's name, so it shows what that viewer may read and nothing else.
Invariants: only a page of this server gets a socket; what a client sends is small and seldom. Loop thread only.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import WSMsgType, web

from console.api.problems import ApiProblem, problem_of
from console.cluster import BrokerGroupsView
from console.tail import FilterTail, shown
from console.viewers import Viewer
from console.web.events import Viewing
from console.web.gate import ConsoleGate
from console.web.serving import PREFIX, ApiRoutes, telling_problems
from remoting.protocol.errors import LightMQError
from remoting.protocol.records.topics import validate_filter
from runtime.http_port import connection_of
from runtime.metrics import Registry

COMMAND_BYTES_MAX = 65_536
HISTORY_MAX = 500
HEARTBEAT_S = 30.0
BATCH_MAX = 100
"""Most messages in one turn of the writer."""
REQUEST_PAUSE_S = 0.2
"""Between two commands of a client that are carried out."""


class LiveCommand(msgspec.Struct, forbid_unknown_fields=True):
    """What a client says."""

    subscribe: str = ""
    history: int = 0
    unsubscribe: str = ""


class LiveRoutes:
    """Sockets that show messages as they come."""

    def __init__(
        self,
        gate: ConsoleGate,
        api: ApiRoutes,
        cluster: BrokerGroupsView,
        viewing: Viewing,
        waiting_max: int,
        registry: Registry,
    ) -> None:
        self._gate = gate
        self._api = api
        self._cluster = cluster
        self._viewing = viewing
        self._waiting_max = waiting_max
        self._dropped = registry.counter(
            "rocketmq_console_live_dropped_total", "Messages that live tails did not show because they were too slow"
        )

    def attach(self, application: web.Application) -> None:
        """Add what is served here to an application that has not started."""
        application.router.add_get(f"{PREFIX}/live", telling_problems(self.serve))

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Talk with one viewer until it leaves."""
        proved = self._api.prove(request, needs_origin=True)
        socket = web.WebSocketResponse(
            heartbeat=HEARTBEAT_S, max_msg_size=COMMAND_BYTES_MAX, compress=False, autoping=True
        )  # fmt: skip
        if not socket.can_prepare(request):
            raise ApiProblem(426, "not_a_websocket", "this is a WebSocket", {"Upgrade": "websocket"})
        connection = connection_of(request)
        with self._viewing.one():
            await socket.prepare(request)
            if connection is not None:
                connection.stream()
            talk = LiveTalk(
                socket, self._cluster, proved.viewer, self._waiting_max, lambda: self._gate.lasts(request, proved)
            )
            try:
                await talk.run()
            finally:
                self._dropped.value += talk.dropped_total
        return socket


class LiveTalk:
    """One viewer's socket."""

    def __init__(
        self,
        socket: web.WebSocketResponse,
        cluster: BrokerGroupsView,
        viewer: Viewer,
        waiting_max: int,
        lasts: Callable[[], bool],
    ) -> None:
        """`lasts`: whether the viewer is still signed in."""
        self._socket = socket
        self._lasts = lasts
        self._cluster = cluster
        self._viewer = viewer
        self._waiting: deque[dict[str, Any]] = deque()
        self._waiting_max = waiting_max
        self._dropped = 0
        self._arrived = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
        self.dropped_total = 0

    async def run(self) -> None:
        """Take commands until the socket ends."""
        writing = asyncio.get_running_loop().create_task(self._write())
        try:
            async for message in self._socket:
                if message.type is not WSMsgType.TEXT:
                    await self._problem("bad_command", "commands are JSON texts")
                    continue
                await self._command(message.data)
                await asyncio.sleep(REQUEST_PAUSE_S)
        finally:
            writing.cancel()
            await self._stop_reading()
            with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                await writing

    async def _command(self, text: str) -> None:
        try:
            command = msgspec.json.decode(text, type=LiveCommand)
        except msgspec.MsgspecError as error:
            await self._problem("bad_command", str(error))
            return
        wrong = validate_filter(command.subscribe) if command.subscribe else None
        if wrong is not None or not 0 <= command.history <= HISTORY_MAX:
            await self._problem("bad_command", wrong or f"history is from 0 to {HISTORY_MAX}")
            return
        await self._stop_reading()
        if command.subscribe:
            self._reading = asyncio.get_running_loop().create_task(self._read(command.subscribe, command.history))

    async def _stop_reading(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading
        self._waiting.clear()
        self._dropped = 0

    async def _read(self, topic_filter: str, history: int) -> None:
        tail = FilterTail(self._cluster, self._viewer, topic_filter)
        try:
            before = await tail.begin(history)
            self._put({"subscribed": topic_filter})
            for broker, message in before:
                self._put({"message": shown(broker, message)})
            while self._lasts():
                for broker, message in await tail.fresh():
                    self._put({"message": shown(broker, message)})
                self._drop(tail.skipped())
            self._put({"problem": {"reason": "unproven", "detail": "you are signed out"}})
        except LightMQError as error:
            found = problem_of(error)
            self._put({"problem": {"reason": found.reason, "detail": found.detail}})

    def _put(self, item: dict[str, Any]) -> None:
        if len(self._waiting) >= self._waiting_max:
            self._drop(1)
            return
        self._waiting.append(item)
        self._arrived.set()

    def _drop(self, count: int) -> None:
        self._dropped += count
        self.dropped_total += count
        if count:
            self._arrived.set()

    async def _write(self) -> None:
        encoder = msgspec.json.Encoder()
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._waiting or self._dropped:
                for _ in range(min(BATCH_MAX, len(self._waiting))):
                    await self._socket.send_str(encoder.encode(self._waiting.popleft()).decode())
                if self._dropped:
                    dropped, self._dropped = self._dropped, 0
                    await self._socket.send_str(encoder.encode({"dropped": dropped}).decode())

    async def _problem(self, reason: str, detail: str) -> None:
        await self._socket.send_str(
            msgspec.json.encode({"problem": {"reason": reason, "detail": detail}}).decode()
        )  # fmt: skip
