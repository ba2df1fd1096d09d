"""Where the steps of histories are read: at the master, or first at the replicas of its group (`proxy.read_from`).

    replica   one replica for each filter, the next one where it does not answer or knows nothing more; then the master
    nearest   the same with replicas that are nearer than the master: on this machine, or faster to take a connection

Where a history begins is asked of the master. A replica knows what is confirmed, or less; where it knows nothing behind
the position that a step begins at, it says so and another broker is asked, so no reader goes back. One that does not
answer in time, or may not, is not asked again for a while. Steps go on at replicas while there is no master.

Invariant: the master is asked for every step that no replica has answered. Loop rule: all on the loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Protocol

from mqtt_proxy.link import Link
from remoting import clock
from remoting.client.connection import ReconnectingConnection
from remoting.protocol.addresses import split_address
from remoting.protocol.bodies.controller_body import (
    MASTER_ID,
    WITH_REPLICAS_FIELD,
    BrokerData,
    ClusterInfo,
    decode_body,
)
from remoting.protocol.bodies.pull_body import FROM_REPLICA_FIELD
from remoting.protocol.bodies.session_body import HistoryRequest, encode
from remoting.protocol.errors import LightMQError
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import Dial
from remoting.transport.failures import checked

FRESH_S = 10.0
"""How long a list of replicas is used before the controllers are asked for another one."""
ASK_TIMEOUT_MS = 1_000
"""How long a controller may take for it, or a replica for a step, before another one is asked."""
ASIDE_S = 5.0
"""How long a replica that did not answer is not asked."""
MEASURE_TIMEOUT_S = 0.5
"""Longest wait for a connection while distances are measured; who takes longer is the farthest."""


class HistorySteps(Protocol):
    """Reads histories."""

    @property
    def up(self) -> bool:
        """Whether a step can be read now."""

    def step(self, request: HistoryRequest) -> asyncio.Future[bytes]:
        """Read a step: the body of the broker's answer. Raises `LinkDownError` at once where nobody can be asked."""


class StepsAtMaster:
    """Reads at the master."""

    def __init__(self, link: Link) -> None:
        self._link = link

    @property
    def up(self) -> bool:
        """Whether the broker is connected."""
        return self._link.up

    def step(self, request: HistoryRequest) -> asyncio.Future[bytes]:
        """As at any other step, whatever it is about: the master knows all of it."""
        return self._link.post(RequestCode.HISTORY, encode(request))


class GroupReplicas:
    """The replicas of the proxy's group, as the controllers list them, and a connection to each."""

    def __init__(
        self, controllers: Sequence[str], dial: Dial, group: Callable[[], str], *, by_distance: bool = False
    ) -> None:
        """`group` gives the name of the broker group, empty while it is unknown; `by_distance`: only those nearer than
        the master, the nearest first.
        """
        self.lines: dict[str, ReconnectingConnection] = {}
        """Address → connection, in the order in which they are asked."""
        self._controllers = list(controllers)
        self._dial, self._group, self.is_by_distance = dial, group, by_distance
        self._asked_s: float | None = None
        self._asking: asyncio.Task[None] | None = None

    async def ready(self) -> None:
        """Look for replicas where that was long ago; only the first time the answer is waited for."""
        now_s, first = clock.monotonic_s(), self._asked_s is None
        if self._asked_s is None or (now_s - self._asked_s >= FRESH_S and self._asking is None):
            self._asked_s = now_s
            self._asking = asyncio.get_running_loop().create_task(self._refresh())
        if first and self._asking is not None:
            await asyncio.wait([self._asking])

    async def close(self) -> None:
        """Close the connections."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
        lines, self.lines = self.lines, {}
        await asyncio.gather(*(line.close() for line in lines.values()))

    async def _refresh(self) -> None:
        try:
            found = await self._brokers()
            if found is not None:
                await self._connect(await self._wanted(found))
        finally:
            self._asking = None

    async def _brokers(self) -> BrokerData | None:
        """The group's brokers by the first controller that answers; None without one."""
        for address in self._controllers:
            with contextlib.suppress(LightMQError):
                connection = await self._dial(address)
                try:
                    question = Command(RequestCode.GET_BROKER_CLUSTER_INFO, fields={WITH_REPLICAS_FIELD: "true"})
                    answer = checked(await connection.request(question, ASK_TIMEOUT_MS))
                    return decode_body(answer.body, ClusterInfo).broker_addr_table.get(self._group())
                finally:
                    await connection.close()
        return None

    async def _wanted(self, brokers: BrokerData) -> list[str]:
        replicas = [at for number, at in sorted(brokers.broker_addrs.items()) if number != MASTER_ID]
        if not self.is_by_distance:
            return replicas
        master = brokers.broker_addrs.get(MASTER_ID)
        limit = float("inf") if master is None else await distance(master)
        measured = [(await distance(address), address) for address in replicas]
        return [address for away, address in sorted(measured) if away < limit]

    async def _connect(self, wanted: Sequence[str]) -> None:
        left = [line for address, line in self.lines.items() if address not in wanted]
        self.lines = {address: self.lines.get(address) or self._line(address) for address in wanted}
        await asyncio.gather(*(line.close() for line in left))

    def _line(self, address: str) -> ReconnectingConnection:
        line = ReconnectingConnection(partial(self._dial, address), address)
        line.start()
        return line


async def distance(address: str) -> float:
    """Seconds until a broker takes a connection; 0 for this machine, infinite for who cannot be reached."""
    began_s = clock.monotonic_s()
    try:
        async with asyncio.timeout(MEASURE_TIMEOUT_S):
            _reader, writer = await asyncio.open_connection(*split_address(address))
    except (OSError, ValueError):
        return float("inf")
    took_s = clock.monotonic_s() - began_s
    mine, theirs = writer.get_extra_info("sockname")[0], writer.get_extra_info("peername")[0]
    writer.close()
    return 0.0 if mine == theirs else took_s


class StepsAtReplicas:
    """Reads at replicas before it asks the master."""

    def __init__(self, link: Link, replicas: GroupReplicas) -> None:
        self._master = StepsAtMaster(link)
        self._replicas = replicas
        self._aside: dict[str, float] = {}
        self._tasks: set[asyncio.Task[bytes]] = set()

    @property
    def up(self) -> bool:
        """Whether there is somebody to ask."""
        return self._master.up or any(line.up for line in self._replicas.lines.values())

    def step(self, request: HistoryRequest) -> asyncio.Future[bytes]:
        """Ask replicas, then the master."""
        if request.last or (request.from_ms and not request.position):
            return self._kept(self._of_master(request))
        return self._kept(self._read(request))

    async def close(self) -> None:
        """Give up the steps under way and close the connections to replicas."""
        for task in list(self._tasks):
            task.cancel()
        await self._replicas.close()

    def _kept(self, work: Coroutine[Any, Any, bytes]) -> asyncio.Task[bytes]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _of_master(self, request: HistoryRequest) -> bytes:
        return await self._master.step(request)

    async def _read(self, request: HistoryRequest) -> bytes:
        await self._replicas.ready()
        addresses = list(self._replicas.lines)
        if addresses and not self._replicas.is_by_distance:
            first = request.queue_id % len(addresses)
            addresses = addresses[first:] + addresses[:first]
        body = encode(request)
        for address in addresses:
            if self._aside.get(address, 0.0) <= clock.monotonic_s():
                found = await self._asked(address, body)
                if found is not None:
                    return found
        return await self._master.step(request)

    async def _asked(self, address: str, body: bytes) -> bytes | None:
        """The answer of a replica; None where it has none."""
        line = self._replicas.lines.get(address)
        if line is None:
            return None
        command = Command(RequestCode.HISTORY, fields={FROM_REPLICA_FIELD: "true"}, body=body)
        try:
            reply = await line.request(command, ASK_TIMEOUT_MS)
        except LightMQError:
            reply = None
        if reply is not None and reply.code == ResponseCode.SUCCESS:
            return bytes(reply.body)
        if reply is None or reply.code != ResponseCode.SERVICE_NOT_AVAILABLE:
            self._aside[address] = clock.monotonic_s() + ASIDE_S
        return None
