"""A TCP proxy in user space with the faults of networks: delay, cuts in one direction or both, reset, refusal.

It is in front of one server, and all clients of that server connect to it. A cut keeps connections open and moves
nothing, as a network that drops packets; what was in flight moves on when it heals, as TCP repeats it.
Thread rule: one loop in one thread for all faces; every method may be called from any thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from dataclasses import dataclass, field

READ_BYTES = 256 * 1024
IN, OUT = "in", "out"
"""Towards the server, and away from it."""


@dataclass
class Condition:
    """The state of the network in front of a server."""

    cut: frozenset[str] = frozenset()
    delay_s: float = 0.0
    refuses: bool = False


@dataclass
class Face:
    """The address of one server that the others dial."""

    name: str
    listen: tuple[str, int]
    target: tuple[str, int]
    condition: Condition = field(default_factory=Condition)
    moved_bytes: int = 0
    connections: set[asyncio.Task[None]] = field(default_factory=set)
    passing: asyncio.Event = field(default_factory=asyncio.Event)
    server: asyncio.Server | None = None


class FaultProxy:
    """The faces of a cluster, served by a thread."""

    def __init__(self) -> None:
        self.faces: dict[str, Face] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._thread.start()

    def add(self, name: str, listen: tuple[str, int], target: tuple[str, int]) -> tuple[str, int]:
        """Open a face; returns its port (port 0 takes any free one)."""
        return self._call(self._add(name, listen, target))

    def set(self, name: str, *, cut: frozenset[str] = frozenset(), delay_s: float = 0.0, refuses: bool = False) -> None:
        """Change the network in front of a server; without arguments it is healthy again."""
        self._call(self._set(name, Condition(cut, delay_s, refuses)))

    def reset(self, name: str) -> int:
        """Break every connection to a server; returns how many there were."""
        return self._call(self._reset(name))

    def close(self) -> None:
        """End."""
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, work):  # type: ignore[no-untyped-def]
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _add(self, name: str, listen: tuple[str, int], target: tuple[str, int]) -> tuple[str, int]:
        face = self.faces[name] = Face(name, listen, target)
        face.passing.set()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            face.connections.add(task)
            try:
                await _serve(face, reader, writer)
            except asyncio.CancelledError:
                pass  # reset, or the end
            finally:
                face.connections.discard(task)
                writer.transport.abort()

        face.server = await asyncio.start_server(accept, *listen)
        face.listen = face.server.sockets[0].getsockname()[:2]
        return face.listen

    async def _set(self, name: str, condition: Condition) -> None:
        face = self.faces[name]
        face.condition = condition
        face.passing.set()  # waiting pumps check again
        if condition.cut or condition.refuses:
            face.passing.clear()

    async def _reset(self, name: str) -> int:
        found = list(self.faces[name].connections)
        for task in found:
            task.cancel()
        await asyncio.gather(*found, return_exceptions=True)
        return len(found)

    async def _close(self) -> None:
        for name, face in self.faces.items():
            assert face.server is not None
            face.server.close()
            await self._reset(name)


async def _serve(face: Face, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One connection from its beginning to its end."""
    if face.condition.refuses:
        return
    await _whole(face, IN)
    try:
        there, back = await asyncio.open_connection(*face.target)
    except OSError:
        return
    try:
        async with asyncio.TaskGroup() as both:
            both.create_task(_pump(face, IN, reader, back))
            both.create_task(_pump(face, OUT, there, writer))
    except* (OSError, EOFError):
        pass
    finally:
        back.transport.abort()


async def _pump(face: Face, direction: str, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Move bytes in one direction until the end, which ends the other direction as well."""
    while True:
        data = await source.read(READ_BYTES)
        if face.condition.delay_s:
            await asyncio.sleep(face.condition.delay_s)
        await _whole(face, direction)
        if not data:
            raise EOFError
        target.write(data)
        face.moved_bytes += len(data)
        with contextlib.suppress(ConnectionError):
            await target.drain()


async def _whole(face: Face, direction: str) -> None:
    """Wait while this direction is cut."""
    while direction in face.condition.cut:
        await face.passing.wait()
