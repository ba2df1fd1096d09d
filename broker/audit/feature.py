"""Every administrative act becomes one record of the log; AUDIT_LIST (9116) shows them to operators.

    AUDIT_LIST  fields `from_ms`, `until_ms`, `before` (the `next` of the page before), `limit` ->
                {"records": [{time_ms, who, role, address, act, target, outcome, road}], "next"}, newest first

The acts are the requests in `remoting.access.rights.ACTS`; those in `ACTS_BY_TOOLS` are acts only where the request
names the tool it comes from, because clients send them too. The reply is sent when the record is confirmed, so that an
act that was answered is in the record after a crash as well. An act on a full disk is carried out, answered and logged
without a record, and counted; so are refused acts above `REFUSED_PER_MINUTE_MAX`, with which nobody can fill the log.

    queue `0x01 audit`, hidden from readers: no topic has such a name, so no client can write there or read it
    record: topic `LIGHTMQ_AUDIT`, body JSON of one `ActRecord`

It expires with the log. Invariant: records are in the order in which the acts ended. Loop thread only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from broker.requests import Feature, RequestTools, limit_of, number
from broker.store.errors import StoreError, UnreadableOffsets
from broker.store.placed import Placed
from remoting.access.rights import ACTS, ACTS_BY_TOOLS, MONITOR
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.image import encode_image
from remoting.protocol.records.record import RecordView
from remoting.server.acts import DONE, ROAD_FIELD, ActRecord, described, witnessed
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from runtime.metrics import Registry

QUEUE = b"\x01audit"
TOPIC = b"LIGHTMQ_AUDIT"
LIMIT_MAX = 200
"""Most records in one page."""
PAGE_BYTES_MAX = 1024 * 1024
REFUSED_PER_MINUTE_MAX = 120
"""Refused acts that become records; more are only counted and logged."""
MINUTE_MS = 60_000

_encode = msgspec.json.encode
_decode = msgspec.json.Decoder(ActRecord).decode


class AuditFeature(Feature):
    """The record of administrative acts."""

    def __init__(self, tools: RequestTools, hidden: set[int], registry: Registry) -> None:
        """`hidden`: queues that readers never see; that of the records is added."""
        self._tools = tools
        self._hidden = hidden
        self._queue_id = tools.store.queues.find(QUEUE)
        if self._queue_id is not None:
            hidden.add(self._queue_id)
        self._minute = 0
        self._refused = 0
        self._unrecorded = registry.counter(
            "rocketmq_audit_unrecorded_total", "Administrative acts without a record in the log", ("reason",)
        )
        self._acts = registry.counter("rocketmq_audit_acts_total", "Administrative acts", ("outcome",))

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler: AUDIT_LIST."""
        return {RequestCode.AUDIT_LIST: self.audit_list}

    def watching(self, handlers: dict[int, Handler]) -> dict[int, Handler]:
        """The same handlers, acts recorded."""
        found = dict(handlers)
        for code in ACTS & handlers.keys():
            found[code] = witnessed(handlers[code], self._report)
        for code in ACTS_BY_TOOLS & handlers.keys():
            found[code] = self._by_tools(handlers[code])
        return found

    def _by_tools(self, handler: Handler) -> Handler:
        act = witnessed(handler, self._report)

        def handle(peer: Peer, command: Command) -> Command | None:
            return (act if ROAD_FIELD in command.fields else handler)(peer, command)

        return handle

    def _report(self, peer: Peer, command: Command, reply: Command | None, outcome: str) -> None:
        """Record an act, then answer it."""
        tools = self._tools
        record = described(tools.authorizer, peer, command, outcome, tools.clock.now_ms())
        self._acts.child("done" if outcome == DONE else outcome.partition(":")[0]).value += 1
        tools.log.info("administrative_act", **msgspec.to_builtins(record))
        position = self._recorded(record)
        if reply is None:
            return
        if position is None:
            peer.send(reply)
        else:
            tools.answers.reply_at(position, peer, reply)

    def _recorded(self, record: ActRecord) -> int | None:
        """The end of the act's record in the log; None when it has none."""
        if record.outcome != DONE and self._too_many(record.time_ms):
            self._unrecorded.child("refused_too_often").value += 1
            return None
        try:
            return self._append(record)
        except StoreError as error:
            self._unrecorded.child("store").value += 1
            self._tools.log.error("audit_unrecorded", act=record.act, who=record.who, error=str(error))
            return None

    def _append(self, record: ActRecord) -> int:
        store = self._tools.store
        if self._queue_id is None:
            self._queue_id = store.queues.open(QUEUE)
            self._hidden.add(self._queue_id)
        image = encode_image(flags=0, born_ms=record.time_ms, topic=TOPIC, body=_encode(record))
        return store.append(Placed(image, [(self._queue_id,)])).end_position

    def _too_many(self, now_ms: int) -> bool:
        """Whether this refused act is above what one minute may record."""
        minute = now_ms // MINUTE_MS
        if minute != self._minute:
            self._minute, self._refused = minute, 0
        self._refused += 1
        return self._refused > REFUSED_PER_MINUTE_MAX

    def audit_list(self, peer: Peer, command: Command) -> Command:
        """9116: a page of the acts, newest first."""
        self._tools.authorizer.authorize(peer, command, MONITOR, "audit")
        fields, limit = command.fields, limit_of(command, LIMIT_MAX)
        if self._queue_id is None:
            return command.reply(body=_encode({"records": [], "next": ""}))
        reading = self._tools.store.reading
        low, high = reading.bounds(self._queue_id)
        high = min(high, number(fields, "before", high))
        if "until_ms" in fields:
            high = min(high, reading.search_time(self._queue_id, number(fields, "until_ms"), upper=True))
        if "from_ms" in fields:
            low = max(low, reading.search_time(self._queue_id, number(fields, "from_ms")))
        first = max(low, high - limit)
        records = self._read(first, high)
        answer = {"records": records[::-1], "next": str(first) if first > low else ""}
        return command.reply(body=_encode(answer))

    def _read(self, first: int, end: int) -> list[dict[str, Any]]:
        assert self._queue_id is not None
        found: list[dict[str, Any]] = []
        while first < end:
            try:
                result = self._tools.store.reading.read(self._queue_id, first, end - first, PAGE_BYTES_MAX, end)
            except UnreadableOffsets as error:
                raise Refused(ResponseCode.SYSTEM_ERROR, f"the record of acts is damaged: {error}") from error
            if not result.records:
                break
            found += [msgspec.to_builtins(_decode(RecordView(record).body)) for record in result.records]
            first += len(result.records)
        return found
