"""HISTORY (9055): what a wildcard filter matches and its queue does not have, from the parent queues, step by step.

A bounded number of scans is kept for the next step of the same subscriber; a scan that was dropped, or lost with a
restart of the broker, is made again from the position in the request. The history ends where the filter's queue begins.
Invariant: everything answered is confirmed. Loop thread only.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from broker.history.scan import HistoryScan, LastScan
from broker.reading.bounds import covered_topics
from broker.requests.tools import Feature, RequestTools
from remoting.access.rights import CONSUME
from remoting.protocol.bodies.session_body import HistoryReply, HistoryRequest, decode, encode
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records import topics as mqtt_topics
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.topics.topics import Topics, VisibleQueues

SCANS_MAX = 64
"""Scans kept between two steps; the least recently used one is dropped above it."""
STEP_RECORDS_MAX = 64
STEP_BYTES_MAX = 64 * 1024
"""Records and bytes of one step, but at least one record: what a slow subscriber costs its proxy."""
QUEUES_MAX = 65_536
"""Parent queues a filter's history is read from; a filter over more is refused."""

Key = tuple[Peer, int, int, int]


class HistoryFeature(Feature):
    """Answers HISTORY."""

    def __init__(self, tools: RequestTools, *, topics: Topics, visible: VisibleQueues) -> None:
        self._tools = tools
        self._topics = topics
        self._visible = visible
        self._scans: OrderedDict[Key, HistoryScan | LastScan] = OrderedDict()

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {RequestCode.HISTORY: self.handle}

    def handle(self, peer: Peer, command: Command) -> Command:
        """One step of a subscriber's history: the records found, and where the next step continues."""
        request = decode(HistoryRequest, command.body)
        wrong = mqtt_topics.validate_filter(request.filter)
        if wrong is not None or self._visible.hidden(request.queue_id):
            raise Refused(ResponseCode.INVALID_PARAMETER, wrong or f"queue {request.queue_id} does not exist")
        self._tools.authorizer.authorize(peer, command, CONSUME, request.filter)
        until = self._begin_of(request.queue_id)
        reply = self._last(peer, request, until) if request.last else self._forward(peer, request, until)
        return command.reply(body=encode(reply))

    def _forward(self, peer: Peer, request: HistoryRequest, until: int) -> HistoryReply:
        scan = self._scans.pop((peer, request.queue_id, request.position, 0), None)
        if not isinstance(scan, HistoryScan):
            queues = self._queues(request.filter)
            store = self._tools.store
            scan = HistoryScan(store, request.filter, request.queue_id, queues, request.position, request.from_ms)
        records, done = scan.step(until, STEP_RECORDS_MAX, STEP_BYTES_MAX)
        if not done:
            self._keep((peer, request.queue_id, scan.position, 0), scan)
        metrics = self._tools.metrics
        metrics.messages_out.value += len(records)
        return HistoryReply(scan.position, done, b"".join(record.raw for record in records))

    def _last(self, peer: Peer, request: HistoryRequest, until: int) -> HistoryReply:
        position = request.position or until
        scan = self._scans.pop((peer, request.queue_id, position, request.last), None)
        if not isinstance(scan, LastScan):
            queues = self._queues(request.filter)
            scan = LastScan(self._tools.store, request.filter, request.queue_id, queues, position)
        left, done = scan.step(request.last)
        if not done:
            self._keep((peer, request.queue_id, scan.position, left), scan)
        return HistoryReply(scan.position, done, last=left)

    def _keep(self, key: Key, scan: HistoryScan | LastScan) -> None:
        self._scans[key] = scan
        if len(self._scans) > SCANS_MAX:
            self._scans.popitem(last=False)

    def _queues(self, topic_filter: str) -> list[int]:
        topics = self._topics
        found = [queue for topic in covered_topics(topics, topic_filter) for queue in topics.queue_ids(topic)]
        if len(found) > QUEUES_MAX:
            raise Refused(ResponseCode.SYSTEM_BUSY, f"the history of more than {QUEUES_MAX} queues")
        return found

    def _begin_of(self, queue_id: int) -> int:
        """Where the filter's own queue begins: at its oldest record, or at the confirm position when it is empty."""
        store = self._tools.store
        low, high = store.reading.bounds(queue_id)
        found = store.reading.positions(queue_id, low, 1) if high > low else []
        return found[0] if found else store.confirm_position
