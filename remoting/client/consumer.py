"""Reading one queue by pulls that wait at its end, and a group's offset in it; for asyncio.

The caller keeps the position: nothing is read ahead, and only `commit` commits. `pull` gets single messages from the
broker; `read` gets the records of the log and unpacks batches here, in far fewer requests.
Invariant: `next_offset` of a result is where the next pull continues, even when nothing was found.
Loop rule: on the loop's thread; `threads.Consumer` is the same for other threads.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from remoting.batches.unpack import Unpacker
from remoting.protocol.bodies.pull_body import (
    STATUS_OK,
    QueueBoundsRequest,
    decode_bounds_reply,
    decode_range_pull_reply,
    encode_bounds_request,
    encode_range_pull,
)
from remoting.protocol.errors import Refused, RemoteViolation
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.record import check_record, iter_records
from remoting.protocol.records.stored_message import Host, StoredMessage, from_record, iter_stored
from remoting.transport.contracts import REQUEST_TIMEOUT_MS, Connection
from remoting.transport.failures import checked

PULL_COUNT_MAX = 32
"""Default messages per pull."""

PULL_WAIT_MS = 15_000
"""How long a pull waits at the end of the queue."""

ANSWER_MARGIN_MS = 5_000
"""Additional time for the answer to a waiting pull to arrive."""

READ_COUNT_MAX = 4_096
"""Default messages per read."""

READ_BYTES_MAX = 1024 * 1024
"""Default bytes of records per read; a larger record is returned all the same."""

NO_HOST: Host = ("0.0.0.0", 0)  # noqa: S104 - no address is bound
"""Host of messages that were read as records, which do not contain it."""

SUSPEND = 2
SUBSCRIPTION_INCLUDED = 4
"""Bits of a pull's system flag: wait at the end; the request has its own filter."""

_ANSWERS = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)


@dataclass(slots=True)
class PullResult:
    """The result of one pull; `moved`: the requested offset does not exist, or no longer."""

    next_offset: int
    min_offset: int
    max_offset: int
    moved: bool = False
    messages: list[StoredMessage] = field(default_factory=list)


class AsyncConsumer:
    """A consumer group's access to one queue of one broker."""

    def __init__(self, connection: Connection, group: str, topic: str, queue_id: int) -> None:
        self._connection = connection
        self._queue = {"topic": topic, "queueId": str(queue_id)}
        self._group = group
        self._topic, self._number = topic, queue_id
        self._id: int | None = None
        self._unpacker = Unpacker()

    async def pull(
        self, offset: int, count_max: int = PULL_COUNT_MAX, wait_ms: int = PULL_WAIT_MS, tags: str = "*"
    ) -> PullResult:
        """Read from `offset`, waiting up to `wait_ms` at the end; `Refused` when topic or queue do not exist."""
        result, body = await self.pull_stored(offset, count_max, wait_ms, tags)
        result.messages = list(iter_stored(body))
        return result

    async def pull_stored(
        self, offset: int, count_max: int = PULL_COUNT_MAX, wait_ms: int = PULL_WAIT_MS, tags: str = "*"
    ) -> tuple[PullResult, bytes]:
        """As `pull`, with the messages as the broker's bytes, which may be empty, beside the result."""
        fields = {
            **self._queue,
            "consumerGroup": self._group,
            "queueOffset": str(offset),
            "maxMsgNums": str(count_max),
            "sysFlag": str(SUBSCRIPTION_INCLUDED | (SUSPEND if wait_ms > 0 else 0)),
            "commitOffset": "0",
            "suspendTimeoutMillis": str(wait_ms),
            "subscription": tags,
            "subVersion": "0",
            "expressionType": "TAG",
        }
        response = await self._connection.request(
            Command(RequestCode.PULL_MESSAGE, fields=fields), wait_ms + ANSWER_MARGIN_MS
        )
        if response.code not in _ANSWERS:
            checked(response)
        result = PullResult(
            _number(response, "nextBeginOffset"),
            _number(response, "minOffset"),
            _number(response, "maxOffset"),
            moved=response.code == ResponseCode.PULL_OFFSET_MOVED,
        )
        return result, bytes(response.body) if response.code == ResponseCode.SUCCESS else b""

    async def read(self, offset: int, count_max: int = READ_COUNT_MAX, bytes_max: int = READ_BYTES_MAX) -> PullResult:
        """Read from `offset` without waiting; batches are unpacked here, not at the broker.

        `Refused` when topic or queue do not exist, `CorruptRecord` for damaged records, `ArrowMissing` without pyarrow.
        """
        if self._id is None:
            self._id = await self._find()
        body = encode_range_pull(self._id, offset, offset + count_max, bytes_max)
        command = Command(RequestCode.RANGE_PULL, body=body)
        pulled = decode_range_pull_reply(checked(await self._connection.request(command)).body)
        records = list(iter_records(pulled.blob))
        for record in records:
            check_record(record.raw, 0, None)
        end = max(offset + count_max, pulled.first_offset)
        messages = [
            from_record(view, queue_id=self._number, queue_offset=at, born_host=NO_HOST, store_host=NO_HOST)
            for at, view in self._unpacker.messages(records, self._id, pulled.first_offset, end)
        ]
        following = min(pulled.next_offset, end) if records else pulled.next_offset
        moved = pulled.status != STATUS_OK
        return PullResult(following, pulled.min_offset, pulled.max_offset, moved=moved, messages=messages)

    async def _find(self) -> int:
        """Return the queue's id at the broker."""
        request = encode_bounds_request(QueueBoundsRequest(topics=[self._topic]))
        response = checked(await self._connection.request(Command(RequestCode.QUEUE_BOUNDS, body=request)))
        for queue in decode_bounds_reply(response.body).queues:
            if queue.queue == self._number:
                return queue.id
        raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic [{self._topic}] has no queue {self._number} here")

    async def committed(self) -> int | None:
        """Return the group's offset in the queue, None when it has none."""
        fields = {**self._queue, "consumerGroup": self._group, "setZeroIfNotFound": "false"}
        response = await self._connection.request(Command(RequestCode.QUERY_CONSUMER_OFFSET, fields=fields))
        if response.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return _number(checked(response), "offset")

    async def commit(self, offset: int) -> None:
        """Store the group's offset: the next message it wants."""
        fields = {**self._queue, "consumerGroup": self._group, "commitOffset": str(offset)}
        checked(await self._connection.request(Command(RequestCode.UPDATE_CONSUMER_OFFSET, fields=fields)))

    async def max_offset(self) -> int:
        """Return the offset of the next message to be stored."""
        return await self._offset(RequestCode.GET_MAX_OFFSET)

    async def min_offset(self) -> int:
        """Return the offset of the oldest message that is still stored."""
        return await self._offset(RequestCode.GET_MIN_OFFSET)

    async def offset_at(self, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at or after a time (milliseconds since 1970)."""
        return await self._offset(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=str(timestamp_ms))

    async def _offset(self, code: int, **fields: str) -> int:
        command = Command(code, fields={**self._queue, **fields})
        return _number(checked(await self._connection.request(command, REQUEST_TIMEOUT_MS)), "offset")


def _number(response: Command, name: str) -> int:
    try:
        return int(response.fields[name])
    except (KeyError, ValueError) as error:
        raise RemoteViolation(f"answer {response.code} has no number {name!r}: {response.fields}") from error
