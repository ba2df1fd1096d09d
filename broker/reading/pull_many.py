"""MULTI_PULL (9004), RANGE_PULL (9005), RECORDS_AT (9008): raw records as they lie in the log, never decoded here.

The proxy pulls many queues in one request, Spark a range of one queue, a fresh subscription its retained messages by
position. One answer holds at most `pull_bytes_max` bytes of records; a queue that found no room is answered OK with no
records and asked again. Invariant: nothing at or above the confirm position and nothing staged is ever in an answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.store.errors import CorruptLog, UnreadableOffsets
from broker.store.read_result import RangeResult
from remoting.access.resources import of_record
from remoting.access.rights import CONSUME
from remoting.protocol.bodies.pull_body import (
    STATUS_DAMAGED,
    STATUS_NO_SUCH_QUEUE,
    STATUS_OK,
    PulledRange,
    QueueRecords,
    decode_multi_pull,
    decode_range_pull,
    decode_records_at,
    encode_multi_pull_reply,
    encode_pulled_range,
    encode_range_pull_reply,
)
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.record import FLAG_STAGED, RecordView
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.requests.tools import RequestTools
    from broker.topics.queues import VisibleQueues

QUEUES_PER_PULL_MAX = 100_000
"""Queues of one MULTI_PULL; more are refused."""
POSITIONS_PER_REQUEST_MAX = 100_000
"""Positions of one RECORDS_AT; more are refused."""
RANGE_COUNT_MAX = 1_000_000
"""Records of one RANGE_PULL; the rest comes with the next."""


class PullRequests:
    """Answers requests for raw records."""

    def __init__(self, tools: RequestTools, *, visible: VisibleQueues) -> None:
        self._tools = tools
        self._visible = visible

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {
            Code.MULTI_PULL: self.multi_pull,
            Code.RANGE_PULL: self.range_pull,
            Code.RECORDS_AT: self.records_at,
        }

    def multi_pull(self, peer: Peer, command: Command) -> Command:
        """Records of many queues, each from its own offset."""
        wants = decode_multi_pull(command.body)
        if len(wants) > QUEUES_PER_PULL_MAX:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"more than {QUEUES_PER_PULL_MAX} queues in one pull")
        room = self._tools.config.limits.pull_bytes_max
        results = []
        for want in wants:
            self.authorize_queue(peer, command, want.queue_id)
            # At least one record, so that a queue whose next record is larger than its wish still moves.
            bytes_max = min(want.max_bytes, room) if room > 0 else 0
            result = self._read(want.queue_id, want.offset, want.max_count if bytes_max else 0, bytes_max)
            room -= sum(map(len, result.records))
            results.append(result)
        self._count_out(results)
        return command.reply(body=encode_multi_pull_reply(results))

    def range_pull(self, peer: Peer, command: Command) -> Command:
        """Records of one queue in [offset, end offset), with the start of each record in the blob."""
        want = decode_range_pull(command.body)
        self.authorize_queue(peer, command, want.queue_id)
        if self._visible.hidden(want.queue_id):
            return command.reply(body=encode_range_pull_reply(no_queue(want.queue_id)))
        bytes_max = min(want.max_bytes, self._tools.config.limits.pull_bytes_max)
        try:
            found = self._tools.store.reading.read_range(
                want.queue_id, want.offset, RANGE_COUNT_MAX, bytes_max, want.end_offset
            )
        except UnreadableOffsets as error:
            return command.reply(body=encode_range_pull_reply(self.damaged(want.queue_id, error)))
        self._tools.metrics.messages_out.value += found.next_offset - found.first_offset
        self._tools.metrics.bytes_out.value += len(found.blob)
        return command.reply(body=range_reply(found))

    def records_at(self, peer: Peer, command: Command) -> Command:
        """The records at log positions, in the order asked; what is gone, unconfirmed or staged is left out."""
        positions = decode_records_at(command.body)
        if len(positions) > POSITIONS_PER_REQUEST_MAX:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"more than {POSITIONS_PER_REQUEST_MAX} positions")
        found = []
        room = self._tools.config.limits.frame_size_bytes_max - 65_536
        for position in positions:
            record = self._record_at(position)
            if record is None:
                continue
            view = RecordView(record)
            if view.flags & FLAG_STAGED or view.type != 1:
                continue
            if not self._tools.authorizer.open:
                self._tools.authorizer.authorize(peer, command, CONSUME, of_record(view))
            room -= len(record)
            if room < 0:
                break
            found.append(record)
        self._tools.metrics.messages_out.value += len(found)
        return command.reply(body=b"".join(found))

    def _record_at(self, position: int) -> memoryview | None:
        """Return the record; None for one that is gone, not confirmed, or damaged, which is told in the log."""
        if not 0 <= position < self._tools.store.confirm_position:
            return None
        try:
            return self._tools.store.reading.read_at(position)
        except CorruptLog as error:
            self._tools.log.error("record_unreadable", position=position, error=str(error))
            return None

    def _read(self, queue_id: int, offset: int, count_max: int, bytes_max: int) -> QueueRecords:
        if self._visible.hidden(queue_id):
            return no_queue(queue_id)
        if count_max <= 0:
            low, high = self._tools.store.reading.bounds(queue_id)
            return QueueRecords(queue_id, STATUS_OK, offset, offset, low, high)
        try:
            found = self._tools.store.reading.read(queue_id, offset, count_max, bytes_max)
        except UnreadableOffsets as error:
            return self.damaged(queue_id, error)
        return QueueRecords(
            queue_id,
            found.status,
            found.first_offset,
            found.next_offset,
            found.min_offset,
            found.max_offset,
            found.records,
        )

    def damaged(self, queue_id: int, error: UnreadableOffsets) -> QueueRecords:
        """One queue's answer, so that damage holds up neither the other queues of the pull nor, once told, this one."""
        self._tools.log.error("messages_unreadable", queue_id=queue_id, error=str(error))
        low, high = self._tools.store.reading.bounds(queue_id)
        return QueueRecords(queue_id, STATUS_DAMAGED, error.next_offset, error.next_offset, low, high)

    def authorize_queue(self, peer: Peer, command: Command, queue_id: int) -> None:
        """Return when the peer may read a queue; raises Refused."""
        if not self._tools.authorizer.open:
            self._tools.authorizer.authorize(peer, command, CONSUME, self._visible.title(queue_id))

    def _count_out(self, results: list[QueueRecords]) -> None:
        for result in results:
            self._tools.metrics.messages_out.value += result.next_offset - result.first_offset
            self._tools.metrics.bytes_out.value += sum(map(len, result.records))


def range_reply(found: RangeResult) -> bytes:
    """The body that answers a RANGE_PULL, here and in the reader processes."""
    pulled = PulledRange(
        found.status,
        found.first_offset,
        found.next_offset,
        found.min_offset,
        found.max_offset,
        len(found.starts),
        found.starts.data.cast("B"),
        memoryview(found.blob),
    )
    return encode_pulled_range(pulled)


def no_queue(queue_id: int) -> QueueRecords:
    """The answer for a queue that does not exist, or that nobody may see."""
    return QueueRecords(queue_id, STATUS_NO_SUCH_QUEUE, 0, 0, 0, 0)
