"""The rows of one task on their way to one broker group: several frames in flight, repeated after a lost connection.

A frame that is sent again says how many rows came before it, so that it is not staged twice. Invariant: `finish`
returns when every frame was answered; a frame is forgotten only when it was. Thread rule: one task.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from remoting.client.blocking import BlockingConnection
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.commands import Command
from remoting.protocol.errors import LightMQError
from spark_connector.brokers import watch_master
from spark_connector.connections import POOL, Address, check, unreachable
from spark_connector.entries import EncodedRows
from spark_connector.errors import BrokerRefused
from spark_connector.options import WriteOptions
from spark_connector.outage import Outage

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
class _Frame:
    """One request's worth of entries and how many rows of the task went before it."""

    body: bytes
    rows: int
    first: int


class RowSender:
    """Sends entries, staged under `attempt` or (None) appended directly.

    `locate` says where the group's master is after a failure. Raises BrokerUnreachable or BrokerRefused when repeating
    does not help, for as long as a broker may be away.
    """

    def __init__(
        self,
        address: Address,
        attempt: AttemptName | None,
        options: WriteOptions,
        locate: Callable[[], Address] | None = None,
    ) -> None:
        self.rows = 0
        """Rows that the broker has answered for."""
        self._address = address
        self._attempt = attempt
        self._options = options
        self._locate = locate
        self._unanswered: deque[_Frame] = deque()
        self._sent: deque[int] = deque()
        self._first = 0
        self._attempts = 0
        self._outage = Outage(options)
        self._lent = ExitStack()
        self._connection: BlockingConnection | None = None

    def add(self, rows: EncodedRows) -> None:
        """Send entries; returns when no more than the usual number of frames is unanswered."""
        for frame in self._frames(rows):
            self._unanswered.append(frame)
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
        """Send what is unsent and take answers until at most so many frames are without one."""
        while self._unanswered:
            try:
                self._talk(most)
            except (OSError, LightMQError) as failure:
                self.close()
                self._sent.clear()
                if isinstance(failure, BrokerRefused):
                    raise
                self._pause(failure)
            else:
                return

    def _talk(self, most: int) -> None:
        connection = self._borrowed()
        while len(self._sent) < len(self._unanswered):
            self._sent.append(connection.send(self._request(self._unanswered[len(self._sent)])))
        while len(self._sent) > most:
            _check_answer(connection.receive(self._sent[0]), self._address)
            self._sent.popleft()
            self.rows += self._unanswered.popleft().rows
            if self._attempts:
                self._attempts = 0
                self._outage.end()

    def _borrowed(self) -> BlockingConnection:
        if self._connection is None:
            options = self._options
            watch = None if self._locate is None else watch_master(self._address, options)
            lending = POOL.borrow(
                self._address,
                options.pull_timeout_ms,
                signer=options.signer,
                tls=options.client_tls,
                while_silent=watch,
            )
            self._connection = self._lent.enter_context(lending)
        return self._connection

    def _pause(self, failure: Exception) -> None:
        """Count a failure and wait for a moment; raises BrokerUnreachable after too many for too long."""
        POOL.forget(self._address)
        self._attempts += 1
        if self._attempts > self._options.fetch_retries:
            self._outage.bear(unreachable(self._address, failure, self._options))
        else:
            time.sleep(self._options.fetch_retry_interval_ms / 1000)
        if self._locate is not None:
            with suppress(LightMQError):
                self._address = self._locate()

    def _request(self, frame: _Frame) -> Command:
        if self._attempt is None:
            return Command(RequestCode.APPEND_MANY, body=frame.body)
        fields = self._attempt.fields() | {"first": str(frame.first)}
        return Command(RequestCode.STAGE, fields=fields, body=frame.body)

    def _frames(self, batch: EncodedRows) -> Iterator[_Frame]:
        """Cut encoded rows into requests."""
        begin = 0
        while begin < len(batch):
            limit = batch.edges[begin] + FRAME_BYTES_MAX
            end = max(begin + 1, int(batch.edges.searchsorted(limit, side="right")) - 1)
            data = batch.data[int(batch.edges[begin]) : int(batch.edges[end])]
            rows = batch.rows(begin, end)
            yield _Frame(b"".join(((end - begin).to_bytes(4, "little"), data)), rows, self._first)
            self._first += rows
            begin = end


def _check_answer(reply: Command, address: Address) -> None:
    """Raise BrokerRefused, or OSError for a refusal that means the same frame again later."""
    if reply.code in BUSY:
        raise OSError(f"the broker is busy: {reply.remark}")
    check(reply, address)
