"""TIMERS (9056): the waiting messages as JSON for operators.

    no field          the numbers: how many wait, by how far away they are due, when the next one is
    limit [, after]   a page in order of due time; `after` is the `next` of the page before
    handle            one message with its properties

Spans of time are read a step at a time between other work, one listing at a time. What is added meanwhile may be
missing. Reads only. Loop thread only.
"""

from __future__ import annotations

import asyncio
import heapq
import json
from typing import TYPE_CHECKING, Any

from broker.delayed.recall import SEARCH_STEP, not_waiting, unique_key
from broker.requests import RequestTools, number, refusal_of
from broker.store.errors import StoreError
from remoting.access.rights import MONITOR
from remoting.native.contracts import Key
from remoting.protocol.bodies.recall_handle import RecallHandle, decode_handle, encode_handle
from remoting.protocol.errors import Refused, RemoteViolation
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.image import show
from remoting.protocol.records.record import RecordView
from remoting.server.router import later
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.delayed.buckets import DelayBucket
    from broker.delayed.delayed import Delayed
    from broker.delayed.recall import MessageFinder

LIMIT_MAX = 1_000
"""Most messages in one page."""
FIRST = "0/0"


class TimerRequests:
    """Shows operators which messages wait."""

    def __init__(self, tools: RequestTools, messages: Delayed, finder: MessageFinder) -> None:
        self._tools = tools
        self._messages = messages
        self._finder = finder
        self._listing = False

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {RequestCode.TIMERS: self.timers}

    def timers(self, peer: Peer, command: Command) -> Command | None:
        """9056: the numbers, a page, or one message. Raises Refused."""
        self._tools.authorizer.authorize(peer, command, MONITOR, "timers")
        given = command.fields.get("handle")
        if given is not None:
            try:
                handle = decode_handle(given)
            except RemoteViolation as error:
                raise Refused(ResponseCode.INVALID_PARAMETER, error.reason) from error
            self._finder.find(peer, command, handle, self._show)
            return None
        if "limit" in command.fields:
            limit = min(number(command.fields, "limit"), LIMIT_MAX)
            later(peer, command, self._page(command, _key(command.fields.get("after", FIRST)), limit))
            return None
        return command.reply(body=_json(self._messages.numbers(self._tools.clock.now_ms())))

    def _show(self, peer: Peer, command: Command, bucket: DelayBucket, offset: int, record: RecordView) -> None:
        if not bucket.is_waiting((bucket.due_ms(record), offset)):
            raise not_waiting()
        properties = {
            bytes(key).decode("utf-8", "replace"): bytes(value).decode("utf-8", "replace")
            for key, value in record.properties()
        }
        peer.send(command.reply(body=_json({"timer": self._line(bucket, offset, record) | {"properties": properties}})))

    async def _page(self, command: Command, after: Key, limit: int) -> Command:
        if limit < 1:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"limit {limit} is no number from 1 on")
        if self._listing:
            raise Refused(ResponseCode.SYSTEM_BUSY, "another listing of waiting messages is under way")
        self._listing = True
        try:
            found: list[tuple[DelayBucket, Key]] = []
            for bucket in self._messages.buckets.after(after[0]):
                found += [(bucket, key) for key in await self._first(bucket, after, limit + 1 - len(found))]
                if len(found) > limit:
                    break
            lines = [line for bucket, key in found[:limit] for line in self._lines(bucket, key)]
        except StoreError as error:
            raise refusal_of(self._tools.metrics, error) from error
        finally:
            self._listing = False
        last = found[:limit][-1][1] if found else after
        page = {"timers": lines, "more": len(found) > limit, "next": f"{last[0]}/{last[1]}"}
        return command.reply(body=_json(page))

    async def _first(self, bucket: DelayBucket, after: Key, count: int) -> list[Key]:
        """The first keys of a bucket behind `after`, in order."""
        keys: list[Key] = []
        offset = bucket.floor
        while True:
            found = self._messages.buckets.read(bucket, offset, SEARCH_STEP)
            seen = [(bucket.due_ms(record), at) for at, record in enumerate(found.records, offset)]
            keys = heapq.nsmallest(count, keys + [key for key in seen if key > after and bucket.is_waiting(key)])
            if found.after == offset:
                return keys
            offset = found.after
            await asyncio.sleep(0)

    def _lines(self, bucket: DelayBucket, key: Key) -> list[dict[str, Any]]:
        """The line of one message; none if it was delivered or copied meanwhile."""
        if not bucket.is_waiting(key):
            return []
        return [self._line(bucket, key[1], record) for record in self._messages.buckets.read(bucket, key[1], 1).records]

    def _line(self, bucket: DelayBucket, offset: int, record: RecordView) -> dict[str, Any]:
        image = RecordView(show(record))
        parent = image.topic.decode("utf-8", "replace")
        key, due_ms = unique_key(record), bucket.due_ms(record)
        handle = RecallHandle(parent, self._tools.config.broker_name, due_ms, key, offset)
        topic = image.mqtt_topic
        return {
            "due_ms": due_ms,
            "stored_ms": record.store_ms,
            "topic": parent if topic is None else topic.decode("utf-8", "replace"),
            "id": key,
            "body_bytes": len(image.body),
            "handle": encode_handle(handle),
        }


def _key(text: str) -> Key:
    due, slash, offset = text.partition("/")
    if not slash or not due.isdigit() or not offset.isdigit() or not text.isascii() or len(text) > 40:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"after {text!r} is no place in a listing")
    return int(due), int(offset)


def _json(answer: dict[str, Any]) -> bytes:
    return json.dumps(answer, separators=(",", ":")).encode()
