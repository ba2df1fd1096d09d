"""Appends in bulk: what is handed over in one loop turn travels in one frame, with a bound on what is on the way.

Delivery is at least once: a frame whose answer was lost is sent again, so its entries may be stored twice. Frames keep
their order as long as none is repeated; who needs order across a lost connection sets `frames_in_flight_max` to 1.
Invariant: every append's future ends: with the places of its entries, or with why they were not stored.
Loop rule: all on the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from remoting.protocol.append_body import decode_append_reply, encode_entries
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.commands import Command
from remoting.protocol.errors import LightMQError, Refused, RemoteViolation
from remoting.transport.contracts import REQUEST_TIMEOUT_MS, Connection
from remoting.transport.failures import ConnectionLost, RequestTimeout, checked

LOG = logging.getLogger("remoting")

FRAME_ENTRIES_MAX = 4_096
"""Entries in one frame."""

FRAME_BYTES_MAX = 4 * 1024 * 1024
"""Bytes of entries in one frame; one append above it travels alone."""

FRAMES_IN_FLIGHT_MAX = 4
"""Frames without an answer; further appends gather meanwhile."""

WAITING_BYTES_MAX = 64 * 1024 * 1024
"""Bytes handed over and not stored yet; more are refused with SYSTEM_BUSY. `ready()` waits for room."""

ATTEMPTS_MAX = 5
"""How often a frame is sent before its appends fail."""

RETRY_PAUSE_MS = 100
"""Pause before a frame is sent again; grows with each attempt."""

_RETRIABLE = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE})

Places = list[tuple[int, int]]
"""(queue id, queue offset) of each entry in its parent queue."""


@dataclass(slots=True)
class _Append:
    """Entries of one caller."""

    entries: Sequence[bytes]
    size: int
    future: asyncio.Future[Places]


@dataclass(slots=True)
class _Frame:
    """Appends that travel together."""

    appends: list[_Append] = field(default_factory=list)
    entries: list[bytes] = field(default_factory=list)
    size: int = 0

    def has_room(self, append: _Append) -> bool:
        return (
            len(self.entries) + len(append.entries) <= FRAME_ENTRIES_MAX and self.size + append.size <= FRAME_BYTES_MAX
        )

    def add(self, append: _Append) -> None:
        self.appends.append(append)
        self.entries.extend(append.entries)
        self.size += append.size


class Producer:
    """Appends entries (see `remoting.protocol.append_body`) to the broker behind a connection."""

    def __init__(
        self,
        connection: Connection,
        *,
        frames_in_flight_max: int = FRAMES_IN_FLIGHT_MAX,
        waiting_bytes_max: int = WAITING_BYTES_MAX,
        attempts_max: int = ATTEMPTS_MAX,
        retry_pause_ms: int = RETRY_PAUSE_MS,
        timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> None:
        self._connection = connection
        self._frames_in_flight_max = frames_in_flight_max
        self._waiting_bytes_max = waiting_bytes_max
        self._attempts_max = attempts_max
        self._retry_pause_ms = retry_pause_ms
        self._timeout_ms = timeout_ms
        self._gathered: deque[_Append] = deque()
        self._waiting_bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._send_due = False
        self._changed = asyncio.Event()
        self._closed = False
        self.frames_sent = 0
        self.frames_repeated = 0
        self.entries_stored = 0
        self.appends_refused = 0

    @property
    def waiting_bytes(self) -> int:
        """Bytes handed over and not stored yet."""
        return self._waiting_bytes

    def append(self, entries: Sequence[bytes]) -> asyncio.Future[Places]:
        """Hand over encoded entries; the future has their places once they are stored durably.

        It fails with `Refused` (the broker's no, or SYSTEM_BUSY above `waiting_bytes_max`), `ConnectionLost` or
        `RequestTimeout` after the last attempt.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Places] = loop.create_future()
        size = sum(map(len, entries))
        if self._closed:
            future.set_exception(ConnectionLost("the producer is closed"))
        elif not entries:
            future.set_result([])
        elif self._waiting_bytes and self._waiting_bytes + size > self._waiting_bytes_max:
            self.appends_refused += 1
            remark = f"{self._waiting_bytes} bytes wait to be stored already: wait for ready()"
            future.set_exception(Refused(ResponseCode.SYSTEM_BUSY, remark))
        else:
            self._waiting_bytes += size
            self._gathered.append(_Append(entries, size, future))
            self._send_soon()
        return future

    async def ready(self) -> None:
        """Wait until less than half of `waiting_bytes_max` is waiting."""
        while self._waiting_bytes > self._waiting_bytes_max // 2:
            self._changed.clear()
            await self._changed.wait()

    async def flush(self) -> None:
        """Wait until everything handed over has ended, well or not."""
        while self._gathered or self._tasks:
            self._changed.clear()
            await self._changed.wait()

    async def close(self) -> None:
        """Take no more, wait for what is on the way."""
        self._closed = True
        await self.flush()

    def _send_soon(self) -> None:
        if not self._send_due:
            self._send_due = True
            asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        self._send_due = False
        while self._gathered and len(self._tasks) < self._frames_in_flight_max:
            frame = _Frame()
            while self._gathered and (not frame.appends or frame.has_room(self._gathered[0])):
                frame.add(self._gathered.popleft())
            task = asyncio.get_running_loop().create_task(self._store(frame))
            self._tasks.add(task)
            task.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._changed.set()
        if self._gathered:
            self._send_soon()

    async def _store(self, frame: _Frame) -> None:
        try:
            places = await self._attempts(frame)
        except LightMQError as error:
            self._end(frame, error)
        except BaseException:
            self._end(frame, ConnectionLost("the producer was stopped"))
            raise
        else:
            self.entries_stored += len(places)
            self._end(frame, places)

    def _end(self, frame: _Frame, outcome: Places | LightMQError) -> None:
        self._waiting_bytes -= frame.size
        at = 0
        for append in frame.appends:
            end = at + len(append.entries)
            if not append.future.done():
                if isinstance(outcome, LightMQError):
                    append.future.set_exception(outcome)
                else:
                    append.future.set_result(outcome[at:end])
            at = end

    async def _attempts(self, frame: _Frame) -> Places:
        body = encode_entries(frame.entries)
        attempt = 1
        while True:
            self.frames_sent += 1
            try:
                command = Command(RequestCode.APPEND_MANY, body=body)
                response = checked(await self._connection.request(command, self._timeout_ms))
                break
            except (ConnectionLost, RequestTimeout, Refused) as error:
                if attempt >= self._attempts_max or (isinstance(error, Refused) and error.code not in _RETRIABLE):
                    raise
                LOG.warning("append of %d entries is repeated: %s", len(frame.entries), error)
            await asyncio.sleep(attempt * self._retry_pause_ms / 1000)
            attempt += 1
            self.frames_repeated += 1
        places = places_of(response.body)
        if len(places) != len(frame.entries):
            raise RemoteViolation(f"the broker answered {len(places)} places for {len(frame.entries)} entries")
        return places


def places_of(body: bytes) -> Places:
    """(queue id, queue offset) of every entry in an answer to APPEND_MANY."""
    return list(decode_append_reply(body)[1])
