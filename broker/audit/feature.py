"""Every administrative act becomes one record of the log; AUDIT_LIST (9116) shows them to operators.

    AUDIT_LIST  fields `from_ms`, `until_ms`, `before` (the `next` of the page before, or the `id` of a record), `limit`
                -> {"records": [{id, time_ms, who, role, address, act, target, outcome, road}], "next", "server"},
                newest first; `server` is this broker's name

The acts are the requests in `remoting.access.rights.ACTS`, and some of those in `SOMETIMES`. The reply is sent when the
record is confirmed, so that an act that was answered is in the record after a crash as well. An act on a full disk is
carried out, answered and logged without a record, and counted; so are refused acts above `REFUSED_PER_MINUTE_MAX`, with
which nobody can fill the log.

    queue `0x01 audit`, hidden from readers: no topic has such a name, so no client can write there or read it
    record: topic `LIGHTMQ_AUDIT`, body JSON of one `ActRecord`

What expires with the log is kept in a table (`kept`), for `audit_retention_ms` in all; both are listed as one.
Invariant: records are in the order in which the acts ended, also across the two. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from broker.audit.kept import KeptActs, decode
from broker.requests import Feature, RequestTools, limit_of, number
from broker.store.errors import StoreError, UnreadableOffsets
from broker.store.placed import Placed
from remoting.access.rights import ACTS, MONITOR
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.image import encode_image
from remoting.protocol.records.record import RecordView
from remoting.server.acts import (
    DONE,
    REFUSED_PER_MINUTE_MAX,
    ActRecord,
    RefusedActs,
    described,
    watched,
)
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from runtime.metrics import Registry

QUEUE = b"\x01audit"
TOPIC = b"LIGHTMQ_AUDIT"
LIMIT_MAX = 200
"""Most records in one page."""
PAGE_BYTES_MAX = 1024 * 1024

_encode = msgspec.json.encode


class AuditFeature(Feature):
    """The record of administrative acts."""

    def __init__(self, tools: RequestTools, hidden: set[int], registry: Registry) -> None:
        """`hidden`: queues that readers never see; that of the records is added."""
        self._tools = tools
        self._hidden = hidden
        self._queue_id = tools.store.queues.find(QUEUE)
        if self._queue_id is not None:
            hidden.add(self._queue_id)
        self._kept = KeptActs(tools.store, tools.clock, tools.log, tools.config.audit_retention_ms)
        tools.store.retention.carried.keep(lambda target, append: self._kept.keep_from(self._queue_id, target, append))
        self._refused = RefusedActs(REFUSED_PER_MINUTE_MAX)
        self._unrecorded = registry.counter(
            "rocketmq_audit_unrecorded_total", "Administrative acts without a record", ("reason",)
        )
        self._acts = registry.counter("rocketmq_audit_acts_total", "Administrative acts", ("outcome",))

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler: AUDIT_LIST."""
        return {RequestCode.AUDIT_LIST: self.audit_list}

    def watching(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """The same handlers, acts recorded."""
        return watched(handlers, ACTS, self._report)

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
        if self._refused.too_many(record):
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

    def audit_list(self, peer: Peer, command: Command) -> Command:
        """9116: a page of the acts, newest first."""
        self._tools.authorizer.authorize(peer, command, MONITOR, "audit")
        fields, limit = command.fields, limit_of(command, LIMIT_MAX)
        from_ms = max(number(fields, "from_ms", 0), self._kept.oldest_ms)
        until_ms = number(fields, "until_ms") if "until_ms" in fields else None
        queue = self._queue_id
        if queue is None:
            return self._page(command, [], more=False)
        reading = self._tools.store.reading
        low, high = reading.bounds(queue)
        end = min(high, number(fields, "before", high))
        if until_ms is not None:
            end = min(end, reading.search_time(queue, until_ms, upper=True))
        first = max(low, reading.search_time(queue, from_ms))
        begin = max(first, end - limit)
        found = self._read(begin, end)
        more = begin > first
        if not more and first == low:
            kept = self._kept.between(from_ms, until_ms, min(end, low))
            wanted = limit - len(found)
            more = len(kept) > wanted
            found = kept[len(kept) - wanted if more else 0 :] + found
        records = [{"id": str(offset), **msgspec.to_builtins(decode(body))} for offset, body in reversed(found)]
        return self._page(command, records, more=more)

    def _page(self, command: Command, records: list[dict[str, Any]], *, more: bool) -> Command:
        following = records[-1]["id"] if more and records else ""
        server = self._tools.config.broker_name
        return command.reply(body=_encode({"records": records, "next": following, "server": server}))

    def _read(self, first: int, end: int) -> list[tuple[int, bytes]]:
        assert self._queue_id is not None
        found: list[tuple[int, bytes]] = []
        while first < end:
            try:
                result = self._tools.store.reading.read(self._queue_id, first, end - first, PAGE_BYTES_MAX, end)
            except UnreadableOffsets as error:
                raise Refused(ResponseCode.SYSTEM_ERROR, f"the record of acts is damaged: {error}") from error
            if not result.records:
                break
            found += [(first + at, bytes(RecordView(record).body)) for at, record in enumerate(result.records)]
            first += len(result.records)
        return found
