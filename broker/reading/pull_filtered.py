"""FILTERED_PULL (9009): a range of one queue as RANGE_PULL reads it, without the records that nobody asked for.

One request looks at a bounded number of records, so an answer may hold none and yet say how far it came: the loop is
never held up by a filter that matches little. What a batch holds is judged by whoever unpacks it. Records that pass the
filter and that the peer may not read are counted by reason. Invariant: as of RANGE_PULL: nothing at or above the
confirm position and nothing staged is ever in an answer. Loop thread only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from broker.reading.pull_many import no_queue
from broker.store import hot
from broker.store.errors import UnreadableOffsets
from broker.store.read_result import RangeResult
from remoting.filtering.judge import Judge, judge_of
from remoting.protocol.bodies.filtered_body import (
    FilteredWant,
    decode_filtered_pull,
    decode_row_filter,
    encode_filtered_reply,
)
from remoting.protocol.bodies.pull_body import PulledRange, QueueRecords
from remoting.protocol.errors import CorruptRecord, LocalMisuse, Refused
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.record import RecordView
from remoting.server.authorizer import TopicJudge
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.reading.pull_many import PullRequests
    from broker.requests.tools import RequestTools
    from broker.topics.queues import VisibleQueues

UNREADABLE = "unreadable"
"""Why a record was withheld whose sizes contradict each other: what topic it has is unknown."""


class FilteredPullRequests:
    """Answers FILTERED_PULL."""

    def __init__(self, tools: RequestTools, *, pulls: PullRequests, visible: VisibleQueues) -> None:
        self._tools = tools
        self._pulls = pulls
        self._visible = visible

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {
            Code.FILTERED_PULL: self.filtered_pull,
        }

    def filtered_pull(self, peer: Peer, command: Command) -> Command:
        """Records of one queue in [offset, end offset) that pass the request's filter."""
        want = decode_filtered_pull(command.body)
        judge = judge_for(want.row_filter)
        readable = self._authorize(peer, command, want)
        if self._visible.hidden(want.queue_id):
            return command.reply(body=_empty(no_queue(want.queue_id)))
        bytes_max = min(want.max_bytes, self._tools.config.limits.pull_bytes_max)
        try:
            found = self._tools.store.reading.read_range(
                want.queue_id, want.offset, judge.look_max, bytes_max, want.end_offset
            )
        except UnreadableOffsets as error:
            return command.reply(body=_empty(self._pulls.damaged(want.queue_id, error)))
        withheld: dict[str, int] = {}
        pulled = filtered(found, judge, readable, withheld)
        for reason, count in withheld.items():
            self._tools.metrics.withheld.child(reason).value += count
        self._tools.metrics.messages_out.value += pulled.count
        self._tools.metrics.bytes_out.value += len(pulled.blob)
        return command.reply(body=encode_filtered_reply(pulled))

    def _authorize(self, peer: Peer, command: Command, want: FilteredWant) -> TopicJudge | None:
        """Who may read the topics of a filter may read what passes it, whatever else the queue holds; who may read some
        of them, those: then what judges a topic is returned.
        """
        if self._tools.authorizer.open:
            return None
        filters = decode_row_filter(want.row_filter).mqtt
        if not filters:
            self._pulls.authorize_queue(peer, command, want.queue_id)
            return None
        return self._tools.authorizer.readable(peer, command, filters)


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
    starts = found.starts.astype(np.int64)
    bases = found.bases if found.bases is not None else np.arange(len(starts), dtype=np.int64) + found.first_offset
    wanted = judge.mask(found.blob, starts)
    if readable is not None:
        wanted = _only_readable(found, starts, wanted, readable, withheld)
    if not wanted.all():
        sizes = np.diff(np.append(starts, len(found.blob)))[wanted]
        ends = np.cumsum(sizes)
        blob = bytearray(int(ends[-1]) if len(ends) else 0)
        if blob:
            hot.core.gather(memoryview(found.blob), starts[wanted], sizes, memoryview(blob))
        starts, bases, kept = ends - sizes, bases[wanted], blob
    else:
        kept = found.blob
    # A batch may begin before the offset that was asked for; its rows say where each is.
    above = np.maximum(bases - found.first_offset, 0).astype("<u4")
    return PulledRange(
        found.status,
        found.first_offset,
        found.next_offset,
        found.min_offset,
        found.max_offset,
        len(starts),
        memoryview(starts.astype("<u4").tobytes()),
        memoryview(kept),
        memoryview(above.tobytes()),
    )


def _only_readable(
    found: RangeResult,
    starts: npt.NDArray[np.int64],
    wanted: npt.NDArray[np.bool_],
    readable: TopicJudge,
    withheld: dict[str, int],
) -> npt.NDArray[np.bool_]:
    """Those wanted records whose own topic may be read."""
    kept = np.zeros(len(starts), bool)
    blob = memoryview(found.blob)
    for index in np.flatnonzero(wanted).tolist():
        reason = _why_withheld(blob, int(starts[index]), readable)
        kept[index] = not reason
        if reason:
            withheld[reason] = withheld.get(reason, 0) + 1
    return kept


def _why_withheld(blob: memoryview, start: int, readable: TopicJudge) -> str:
    """Why a record may not be handed out; empty when it may."""
    try:
        topic = RecordView(blob, start).mqtt_topic
    except CorruptRecord:
        return UNREADABLE
    verdict = readable(topic) if topic is not None else None
    if verdict is None:
        return UNREADABLE  # a filter of topics lets none pass that has no topic
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
