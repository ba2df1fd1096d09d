"""RETAINED_LIST and RETAINED_CLEAR (9113, 9114): retained messages, for operators.

    RETAINED_LIST   fields `filter` (an MQTT filter; missing: all), `contains` (part of the topic), `after`, `limit` ->
                    {"retained": [{"topic", "bytes", "qos", "stored_ms", "expires_ms", "position"}], "next", "total"}
    RETAINED_CLEAR  field `topic` -> {"topic", "cleared"}: the topic has no retained message any more

Topics come in the order of their bytes. A page costs a search and the messages of the page, whose payloads are not
shown; what has to be compared with a text or a wildcard is looked at in steps with other work between them. A cleared
topic needs no room on the disk, and subscribers are not told: a client that subscribes later gets nothing.
Invariant: `cleared` is answered when the deletion is confirmed. Loop thread only.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from broker.requests import RequestTools, limit_of, text
from broker.store.index.absence import Absence
from broker.store.state import state_kinds
from broker.store.state.state_kinds import StateChange
from broker.topics.sorted_names import SortedNames
from remoting.access.rights import ADMIN, MONITOR
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.properties import expires_ms
from remoting.protocol.records.record import FLAG_QOS_MASK, RecordView
from remoting.protocol.records.topics import matches, validate_filter
from remoting.server.router import later
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.publishing.append import Appender
    from broker.retained.feature import Retained
    from broker.store.log_store import LogStore

LIMIT_MAX = 200
"""Most messages in one page."""
STEP = 2_000
"""Topics looked at in one turn of the loop: about a millisecond."""
EVERYTHING = "#"


class RetainedRequests:
    """Shows and clears retained messages."""

    def __init__(self, tools: RequestTools, retained: Retained, appender: Appender) -> None:
        self._tools = tools
        self._retained = retained
        self._appender = appender
        self._sorted = SortedNames(lambda: _topics(tools.store))
        tools.store.state.subscribe(state_kinds.RETAINED, self._changed)

    def maintain(self, now_ms: int) -> None:
        """Drop the order of topics when nobody looks any more."""
        self._sorted.maintain(now_ms)

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {RequestCode.RETAINED_LIST: self.retained_list, RequestCode.RETAINED_CLEAR: self.retained_clear}

    def retained_list(self, peer: Peer, command: Command) -> None:
        """9113: a page of the topics with a retained message."""
        self._tools.authorizer.authorize(peer, command, MONITOR, "retained messages")
        fields = command.fields
        topic_filter = fields.get("filter") or EVERYTHING
        wrong = validate_filter(topic_filter)
        if wrong is not None:
            raise Refused(ResponseCode.INVALID_PARAMETER, wrong)
        asked = (topic_filter, fields.get("contains", "").encode(), fields.get("after", "").encode())
        later(peer, command, self._page(command, *asked, limit_of(command, LIMIT_MAX)))

    def _changed(self, topic: bytes, value: bytes | None, _position: int) -> None:
        self._sorted.changed(topic, exists=value is not None)

    async def _page(self, command: Command, topic_filter: str, contains: bytes, after: bytes, limit: int) -> Command:
        if topic_filter == EVERYTHING and not contains:
            found = await self._sorted.following(after, limit + 1, self._tools.clock.now_ms())
        else:
            found = await self._search(topic_filter, contains, after, limit)
        page = [row for topic in found[:limit] if (row := self._row(topic)) is not None]
        following = found[limit - 1].decode() if len(found) > limit else ""
        answer = {"retained": page, "next": following, "total": len(self._retained)}
        return command.reply(body=msgspec.json.encode(answer))

    async def _search(self, topic_filter: str, contains: bytes, after: bytes, limit: int) -> list[bytes]:
        """One topic more than `limit`, if there are so many."""
        topics = await self._sorted.wanted(self._tools.clock.now_ms())
        wanted, begin = topic_filter.encode(), literal_beginning(topic_filter).encode()
        everything = topic_filter == EVERYTHING
        found: list[bytes] = []
        at = bisect_left(topics, begin) if begin > after else bisect_right(topics, after)
        while len(found) <= limit:
            step = topics[at : at + STEP]
            found += [topic for topic in step if contains in topic and (everything or matches(wanted, topic))]
            if len(step) < STEP or not step[-1].startswith(begin):
                break
            await asyncio.sleep(0)
            at = bisect_right(topics, step[-1])  # the list may have changed
        return found

    def _row(self, topic: bytes) -> dict[str, Any] | None:
        """The retained message of a topic; None if it was cleared meanwhile or is not confirmed yet."""
        store = self._tools.store
        entry = store.state.get(state_kinds.RETAINED, topic)
        if entry is None:
            return None
        record = store.reading.read_at(entry[1])
        if record is Absence.DAMAGED:  # shown without what cannot be read, so that it can be cleared
            return {"topic": topic.decode(), "bytes": None, "position": entry[1]}
        if isinstance(record, Absence):
            return None
        view = RecordView(record)
        return {
            "topic": topic.decode(),
            "bytes": len(view.body),
            "qos": view.flags & FLAG_QOS_MASK,
            "stored_ms": view.store_ms,
            "expires_ms": expires_ms(view),
            "position": entry[1],
        }

    def retained_clear(self, peer: Peer, command: Command) -> None:
        """9114: forget the retained message of a topic. Raises Refused when it has none."""
        topic = text(command.fields, "topic").encode()
        self._tools.authorizer.authorize(peer, command, ADMIN, "retained messages")
        self._appender.catch_up()
        self._appender.flush()
        if topic not in self._retained:
            remark = f"the topic {topic.decode()!r} has no retained message"
            raise Refused(ResponseCode.QUERY_NOT_FOUND, remark)
        position = self._tools.store.append_state([StateChange(state_kinds.RETAINED, topic, None)])
        body = msgspec.json.encode({"topic": topic.decode(), "cleared": True})
        self._tools.answers.reply_at(position, peer, command.reply(body=body))


def literal_beginning(topic_filter: str) -> str:
    """What every topic that a filter matches begins with."""
    levels: list[str] = []
    for level in topic_filter.split("/"):
        if level == "#":  # matches the level above it too
            return "/".join(levels)
        if level == "+":
            return "/".join([*levels, ""]) if levels else ""
        levels.append(level)
    return topic_filter


def _topics(store: LogStore) -> Iterator[list[bytes]]:
    """The topics with a retained message, step by step."""
    topics = [bytes(topic) for topic, _entry in store.state.items(state_kinds.RETAINED)]
    for begin in range(0, len(topics), STEP):
        yield topics[begin : begin + STEP]
