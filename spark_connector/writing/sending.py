"""The rows of one task on their way to one broker group: several frames in flight, repeated after a lost connection.

`InFlight` keeps the frames and `GroupMaster` finds the master; here they are driven over a pooled connection. A
frame that is sent again says how many rows came before it, so that it is not staged twice. Invariant: `finish` returns
when every frame was answered; a frame is forgotten only when it was. Thread rule: one task.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from remoting.client.blocking import BlockingConnection
from remoting.client.in_flight import FlightFrame, InFlight, WindowLimits
from remoting.protocol.errors import LightMQError
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from spark_connector.brokers.connections import unreachable
from spark_connector.brokers.masters import GroupMaster
from spark_connector.brokers.outage import Outage
from spark_connector.errors import BrokerRefused
from spark_connector.options.read_write import WriteOptions
from spark_connector.writing.row_encoder import EncodedRows

FRAME_BYTES_MAX = 2 * 1024 * 1024
"""Entries per request; a single larger message makes a larger frame, up to the broker's own limit."""
FRAMES_IN_FLIGHT_MAX = 3
"""Frames sent before the first answer is awaited."""
BUSY = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL})
"""Answers that mean: the same again, later."""


@dataclass(frozen=True, slots=True)
class AttemptName:
    """What the rows of one task are staged under; `attempt` is random, so that no other run of the task shares it."""

    sink: str
    batch: int
    partition: int
    attempt: int

    def fields(self) -> dict[str, str]:
        """As header fields of STAGE."""
        numbers = {"batch": self.batch, "partition": self.partition, "attempt": self.attempt}
        return {"sink": self.sink} | {name: str(number) for name, number in numbers.items()}


@dataclass(frozen=True, slots=True)
class _Request:
    """Entries that travel as one request, and how many rows of the task go before them."""

    body: bytes
    rows: int
    first: int


class RowSender:
    """Sends entries to the master of a group, staged under `attempt` or (None) appended directly.

    Raises BrokerUnreachable or BrokerRefused when repeating does not help, for as long as a broker may be away.
    """

    def __init__(self, master: GroupMaster, attempt: AttemptName | None, options: WriteOptions) -> None:
        self.rows = 0
        """Rows that the broker has answered for."""
        self._attempt = attempt
        self._options = options
        self._master = master
        self._window: InFlight[_Request] = InFlight(
            WindowLimits(frame_items_max=1, frame_bytes_max=FRAME_BYTES_MAX, frames_in_flight_max=FRAMES_IN_FLIGHT_MAX)
        )
        self._sent: deque[tuple[int, FlightFrame[_Request]]] = deque()
        """Numbers of the requests without an answer, with their frames."""
        self._first = 0
        self._failures = 0
        self._outage = Outage(options)
        self._lent = ExitStack()
        self._connection: BlockingConnection | None = None

    def add(self, rows: EncodedRows) -> None:
        """Send entries; returns when one more frame may be sent."""
        for request in self._requests(rows):
            self._window.add(request, len(request.body))
            self._settle(FRAMES_IN_FLIGHT_MAX - 1)

    def finish(self) -> int:
        """Wait for every answer and return the number of rows."""
        self._settle(0)
        self.close()
        return self.rows

    def close(self) -> None:
        """Give the connection back; one that still has answers to come is closed."""
        self._connection = None
        self._lent.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _settle(self, most: int) -> None:
        """Send what may be sent and take answers until at most so many frames are without one."""
        while not self._window.is_idle:
            try:
                self._exchange(most)
            except (OSError, LightMQError) as failure:
                self.close()
                self._sent.clear()
                self._window.lost()
                if isinstance(failure, BrokerRefused):
                    raise
                self._pause(failure)
            else:
                return

    def _exchange(self, most: int) -> None:
        if self._connection is None:
            self._connection = self._master.lend(self._lent)
        while (frame := self._window.take()) is not None:
            self._sent.append((self._connection.send(self._command(frame.items[0])), frame))
        while len(self._sent) > most:
            number, frame = self._sent[0]
            self._check(self._connection.receive(number))
            self._sent.popleft()
            self._window.stored(frame)
            self.rows += frame.items[0].rows
            if self._failures:
                self._failures = 0
                self._outage.end()

    def _check(self, reply: Command) -> None:
        """Raise BrokerRefused, or OSError for a refusal that means the same frame again later."""
        if reply.code in BUSY:
            raise OSError(f"the broker is busy: {reply.remark}")
        self._master.check(reply)

    def _pause(self, failure: Exception) -> None:
        """Count a failure and wait for a moment; raises BrokerUnreachable after too many for too long."""
        self._master.failed()
        self._failures += 1
        if self._failures > self._options.fetch_retries:
            self._outage.bear(unreachable(self._master.address, failure, self._options))
        else:
            time.sleep(self._options.fetch_retry_interval_ms / 1000)

    def _command(self, request: _Request) -> Command:
        if self._attempt is None:
            return Command(RequestCode.APPEND_MANY, body=request.body)
        fields = self._attempt.fields() | {"first": str(request.first)}
        return Command(RequestCode.STAGE, fields=fields, body=request.body)

    def _requests(self, batch: EncodedRows) -> Iterator[_Request]:
        """Cut encoded rows into requests."""
        begin = 0
        while begin < len(batch):
            limit = batch.edges[begin] + FRAME_BYTES_MAX
            end = max(begin + 1, int(batch.edges.searchsorted(limit, side="right")) - 1)
            data = batch.data[int(batch.edges[begin]) : int(batch.edges[end])]
            rows = batch.rows(begin, end)
            yield _Request(bytes(data), rows, self._first)
            self._first += rows
            begin = end
