"""MULTI_PULL (9004), RANGE_PULL (9005), RECORDS_AT (9008), FILTERED_PULL (9009): raw records as they are in the log.

The proxy pulls many queues in one request, Spark a range of one queue, a fresh subscription its retained messages by
position. One answer has at most `pull_bytes_max` bytes of records; a queue that found no room is answered OK with no
records and asked again.

FILTERED_PULL is RANGE_PULL without the records that do not pass the request's filter. One request examines a bounded
number of records, so an answer may be empty and yet move the offset on: a filter that matches little does not block the
loop. The rows of a batch are judged where it is unpacked. Records that pass the filter and that the peer may not read
are counted by reason.

A new master may not have confirmed yet what its predecessor has shown, and one that is cut off does not know what its
successor shows. Where either can be, no offset is called too large: MULTI_PULL waits for proof (`read_barrier`), and
without it the queue has no records, as at its end. A new master refuses a range for now. From any other master the
reader of a range may be told too much: it waits for what is not there, and does not go back.

Invariant: nothing at or above the confirm position and nothing staged is ever in an answer. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from broker.reading.read_barrier import Proved
from broker.store.errors import UnreadableOffsets
from broker.store.index.absence import Absence
from broker.store.index.reader import OFFSET_TOO_LARGE, RangeResult
from remoting.access.rights import CONSUME, of_record
from remoting.filtering.judge import Judge, judge_of
from remoting.native import core as native
from remoting.native.vectors import Column, arange, column, cumsum, diff, full, joined, maximum, nonzero
from remoting.protocol.bodies.pull_body import (
    STATUS_DAMAGED,
    STATUS_NO_SUCH_QUEUE,
    STATUS_OFFSET_TOO_LARGE,
    STATUS_OK,
    FilteredWant,
    PulledRange,
    QueueRecords,
    QueueWant,
    RangeWant,
    decode_filtered_pull,
    decode_multi_pull,
    decode_range_pull,
    decode_records_at,
    decode_row_filter,
    encode_filtered_reply,
    encode_multi_pull_reply,
    encode_pulled_range,
    encode_range_pull_reply,
)
from remoting.protocol.errors import CorruptRecord, LocalMisuse, Refused
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.record import FLAG_STAGED, RecordView
from remoting.server.authorizer import TopicJudge
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.requests import RequestTools

QUEUES_PER_PULL_MAX = 100_000
"""Queues of one MULTI_PULL; more are refused."""
EVERYTHING = "#"
"""Resource of all topics."""
POSITIONS_PER_REQUEST_MAX = 1_024
"""Positions of one RECORDS_AT; more are refused."""
RECORDS_AT_BYTES_MAX = 1024 * 1024
"""Bytes of records in one answer to RECORDS_AT, what one turn of the loop reads and sends; one record may exceed it."""
RANGE_COUNT_MAX = 1_000_000
"""Records of one RANGE_PULL; the rest comes with the next."""
UNREADABLE = "unreadable"
"""Why a record is withheld whose sizes contradict each other: its topic is unknown."""


class ShownQueues(Protocol):
    """Which queues readers see, by id."""

    def hidden(self, queue_id: int) -> bool:
        """True for queues that readers never see, and for ids that do not exist."""
        ...

    def title(self, queue_id: int) -> str:
        """The resource of a queue, for authorisation; empty for a hidden one."""
        ...


class PullRequests:
    """Answers requests for raw records."""

    def __init__(self, tools: RequestTools, *, visible: ShownQueues, prove: Callable[[Proved], None]) -> None:
        """`prove` tells whether no other master has shown more until now: `ReadBarrier.wait`."""
        self._tools = tools
        self._visible = visible
        self._prove = prove

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {
            Code.MULTI_PULL: self.multi_pull,
            Code.RANGE_PULL: self.range_pull,
            Code.RECORDS_AT: self.records_at,
            Code.FILTERED_PULL: self.filtered_pull,
        }

    def multi_pull(self, peer: Peer, command: Command) -> Command | None:
        """Records of many queues, each from its own offset; later where one of them is to be sent back."""
        wants = decode_multi_pull(command.body)
        if len(wants) > QUEUES_PER_PULL_MAX:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"more than {QUEUES_PER_PULL_MAX} queues in one pull")
        for want in wants:
            self._authorize_queue(peer, command, want.queue_id)
        results = self._read_all(wants)
        if not any(result.status == STATUS_OFFSET_TOO_LARGE for result in results):
            return self._pulled(command, results)
        if not self._tools.is_sure:
            return self._pulled(command, [_waiting(each) for each in results])

        def proved(is_proven: bool) -> None:
            found = self._read_all(wants) if is_proven else [_waiting(each) for each in results]
            peer.send(self._pulled(command, found))

        self._prove(proved)
        return None

    def _read_all(self, wants: Sequence[QueueWant]) -> list[QueueRecords]:
        room = self._tools.config.limits.pull_bytes_max
        results = []
        for want in wants:
            # At least one record, so that a queue whose next record is larger than `max_bytes` still moves.
            bytes_max = min(want.max_bytes, room) if room > 0 else 0
            result = self._read(want.queue_id, want.offset, want.max_count if bytes_max else 0, bytes_max)
            room -= sum(map(len, result.records))
            results.append(result)
        return results

    def _pulled(self, command: Command, results: list[QueueRecords]) -> Command:
        self._count_out(results)
        return command.reply(body=encode_multi_pull_reply(results))

    def range_pull(self, peer: Peer, command: Command) -> Command:
        """Records of one queue in [offset, end offset), with the start of each record in the blob."""
        want = decode_range_pull(command.body)
        self._authorize_queue(peer, command, want.queue_id)
        found = self._read_range(want, RANGE_COUNT_MAX)
        if isinstance(found, QueueRecords):
            return command.reply(body=encode_range_pull_reply(found))
        self._tools.metrics.count_out(command.fields, found.next_offset - found.first_offset, len(found.blob))
        return command.reply(body=range_reply(found))

    def filtered_pull(self, peer: Peer, command: Command) -> Command:
        """Records of one queue in [offset, end offset) that pass the request's filter."""
        want = decode_filtered_pull(command.body)
        judge = judge_for(want.row_filter)
        readable = self._readable(peer, command, want)
        found = self._read_range(want, judge.look_max)
        if isinstance(found, QueueRecords):
            return command.reply(body=_empty(found))
        withheld: dict[str, int] = {}
        pulled = filtered(found, judge, readable, withheld)
        for reason, count in withheld.items():
            self._tools.metrics.withheld.child(reason).value += count
        self._tools.metrics.count_out(command.fields, pulled.count, len(pulled.blob))
        return command.reply(body=encode_filtered_reply(pulled))

    def _read_range(self, want: RangeWant | FilteredWant, count_max: int) -> RangeResult | QueueRecords:
        """The records of a range; without any, and with the status, where the queue is hidden or damaged."""
        if self._visible.hidden(want.queue_id):
            return no_queue(want.queue_id)
        bytes_max = min(want.max_bytes, self._tools.config.limits.pull_bytes_max)
        reading = self._tools.store.reading
        try:
            found = reading.read_range(want.queue_id, want.offset, count_max, bytes_max, want.end_offset)
        except UnreadableOffsets as error:
            return self._damaged(want.queue_id, error)
        if found.status == OFFSET_TOO_LARGE and not self._tools.is_sure:
            remark = f"offset {want.offset} of queue {want.queue_id} may wait to be confirmed by this new master"
            raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, remark)
        return found

    def records_at(self, peer: Peer, command: Command) -> Command | None:
        """The records at log positions, in the order of the request, without those expired, damaged or staged.

        Who asks takes one that is not in the answer for gone: so it comes when those in this log are confirmed. It ends
        behind the record with which it is full, and the first one always fits: only an answer without any record says
        that there is none.

        Raises:
            Refused: NO_PERMISSION for a record that the peer may not read, and for none at all unless it may read
                everything: who may not is not told which positions hold messages. It is for the whole request: one left
                out would be taken for gone, and what is not the peer's to read is not gone.
        """
        positions = decode_records_at(command.body)
        if len(positions) > POSITIONS_PER_REQUEST_MAX:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"more than {POSITIONS_PER_REQUEST_MAX} positions")
        store = self._tools.store
        confirmed, end = store.confirm_position, store.end_position
        if not any(confirmed <= position < end for position in positions):
            return self._records_at(peer, command, positions)

        def answer() -> None:
            try:
                peer.send(self._records_at(peer, command, positions))
            except Refused as refused:
                peer.send(command.reply(refused.code, refused.remark))

        self._tools.answers.when_confirmed(end, peer, command.reply(), answer)
        return None

    def _records_at(self, peer: Peer, command: Command, positions: Sequence[int]) -> Command:
        found: list[memoryview] = []
        room = RECORDS_AT_BYTES_MAX
        for position in positions:
            record = self._record_at(position)
            view = None if record is None else RecordView(record)
            if view is not None and (view.flags & FLAG_STAGED or view.type != 1):
                view = None
            if not self._tools.authorizer.allows(
                peer, command, CONSUME, EVERYTHING if view is None else of_record(view)
            ):
                remark = f"you may not read what is at position {position}, if anything"
                raise Refused(ResponseCode.NO_PERMISSION, remark)
            if view is None or record is None:
                continue
            room -= len(record)
            if room < 0 and found:
                break
            found.append(record)
        self._tools.metrics.messages_out.value += len(found)
        return command.reply(body=b"".join(found))

    def _record_at(self, position: int) -> memoryview | None:
        """The record; None for one that has expired, is not in this log, or is damaged, which is logged."""
        record = self._tools.store.reading.read_at(position) if position >= 0 else Absence.GONE
        if record is Absence.DAMAGED:
            self._tools.log.error("record_unreadable", position=position)
        return None if isinstance(record, Absence) else record

    def _read(self, queue_id: int, offset: int, count_max: int, bytes_max: int) -> QueueRecords:
        if self._visible.hidden(queue_id):
            return no_queue(queue_id)
        if count_max <= 0:
            low, high = self._tools.store.reading.bounds(queue_id)
            return QueueRecords(queue_id, STATUS_OK, offset, offset, low, high)
        try:
            found = self._tools.store.reading.read(queue_id, offset, count_max, bytes_max)
        except UnreadableOffsets as error:
            return self._damaged(queue_id, error)
        return QueueRecords(
            queue_id,
            found.status,
            found.first_offset,
            found.next_offset,
            found.min_offset,
            found.max_offset,
            found.records,
        )

    def _damaged(self, queue_id: int, error: UnreadableOffsets) -> QueueRecords:
        """The answer for a damaged queue: the next readable offset, so that other queues and later pulls continue."""
        self._tools.log.error("messages_unreadable", queue_id=queue_id, error=str(error))
        low, high = self._tools.store.reading.bounds(queue_id)
        return QueueRecords(queue_id, STATUS_DAMAGED, error.next_offset, error.next_offset, low, high)

    def _authorize_queue(self, peer: Peer, command: Command, queue_id: int) -> None:
        """Raise Refused unless the peer may read a queue."""
        if not self._tools.authorizer.open:
            self._tools.authorizer.authorize(peer, command, CONSUME, self._visible.title(queue_id))

    def _readable(self, peer: Peer, command: Command, want: FilteredWant) -> TopicJudge | None:
        """Authorize a filtered pull; the judge of single topics where the peer may read only some of the filter's.

        A peer that may read the topics of a filter may read what passes it, whatever else is in the queue.
        """
        if self._tools.authorizer.open:
            return None
        filters = decode_row_filter(want.row_filter).mqtt
        if not filters:
            self._authorize_queue(peer, command, want.queue_id)
            return None
        return self._tools.authorizer.readable(peer, command, filters)

    def _count_out(self, results: list[QueueRecords]) -> None:
        for result in results:
            self._tools.metrics.messages_out.value += result.next_offset - result.first_offset
            self._tools.metrics.bytes_out.value += sum(map(len, result.records))


def range_reply(found: RangeResult) -> bytes:
    """The body of the answer to RANGE_PULL, here and in the reader processes."""
    pulled = PulledRange(
        found.status,
        found.first_offset,
        found.next_offset,
        found.min_offset,
        found.max_offset,
        len(found.starts),
        found.starts.data,
        memoryview(found.blob),
    )
    return encode_pulled_range(pulled)


def _waiting(result: QueueRecords) -> QueueRecords:
    """A queue whose reader is not told that its offset is too large: it has no more records for now."""
    if result.status != STATUS_OFFSET_TOO_LARGE:
        return result
    offset = result.first_offset
    return QueueRecords(result.queue_id, STATUS_OK, offset, offset, result.min_offset, result.max_offset)


def no_queue(queue_id: int) -> QueueRecords:
    """The answer for a queue that does not exist or is hidden."""
    return QueueRecords(queue_id, STATUS_NO_SUCH_QUEUE, 0, 0, 0, 0)


def judge_for(encoded: bytes) -> Judge:
    """The judge of a request's filter; Refused for an expression that is wrong."""
    try:
        return judge_of(encoded)
    except LocalMisuse as error:
        raise Refused(ResponseCode.INVALID_PARAMETER, str(error)) from error


def filtered(found: RangeResult, judge: Judge, readable: TopicJudge | None, withheld: dict[str, int]) -> PulledRange:
    """What a filter, and `readable` of its topics, leave of a range, in one piece; `withheld` (reason -> records) is
    added to.
    """
    starts = found.starts.astype("q")
    bases = found.bases if found.bases is not None else arange(0, len(starts)) + found.first_offset
    wanted = judge.mask(found.blob, starts)
    if readable is not None:
        wanted = _only_readable(found, starts, wanted, readable, withheld)
    if not wanted.all():
        sizes = diff(joined([starts, column([len(found.blob)], "q")]))[wanted]
        ends = cumsum(sizes)
        blob = bytearray(ends[-1] if len(ends) else 0)
        if blob:
            native.core.gather(memoryview(found.blob), starts[wanted], sizes, memoryview(blob))
        starts, bases, kept = ends - sizes, bases[wanted], blob
    else:
        kept = found.blob
    # A batch may begin before the requested offset; the offset of each row is in it.
    above = maximum(bases - found.first_offset, 0).astype("I")
    return PulledRange(
        found.status,
        found.first_offset,
        found.next_offset,
        found.min_offset,
        found.max_offset,
        len(starts),
        starts.astype("I").data,
        memoryview(kept),
        above.data,
    )


def _only_readable(
    found: RangeResult,
    starts: Column,
    wanted: Column,
    readable: TopicJudge,
    withheld: dict[str, int],
) -> Column:
    """The wanted records whose topic may be read."""
    kept = full(len(starts), 0, "B")
    blob = memoryview(found.blob)
    for index in nonzero(wanted):
        reason = _why_withheld(blob, starts[index], readable)
        kept[index] = not reason
        if reason:
            withheld[reason] = withheld.get(reason, 0) + 1
    return kept


def _why_withheld(blob: memoryview, start: int, readable: TopicJudge) -> str:
    """Why a record is withheld; empty when it may be read."""
    try:
        topic = RecordView(blob, start).mqtt_topic
    except CorruptRecord:
        return UNREADABLE
    verdict = readable(topic) if topic is not None else None
    if verdict is None:
        return UNREADABLE  # a filter of topics passes no record without a topic
    return "" if verdict.allowed else verdict.reason


def _empty(result: QueueRecords) -> bytes:
    nothing = memoryview(b"")
    return encode_filtered_reply(
        PulledRange(
            result.status,
            result.first_offset,
            result.next_offset,
            result.min_offset,
            result.max_offset,
            0,
            nothing,
            nothing,
            nothing,
        )
    )
