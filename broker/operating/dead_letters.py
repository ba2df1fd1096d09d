"""DEAD_LETTERS and RESEND_DEAD_LETTER (9122, 9123): messages that consumer groups gave up, for operators.

    DEAD_LETTERS        fields `group` (missing: all groups), `contains` (part of a group's name), `after`, `limit` ->
                        {"dead_letters": [{"group", "queue", "offset", "topic", "stored_ms", "tries", "id", "keys",
                        "tags", "position", "bytes", "properties", "body", "encoding"}], "next"}
    RESEND_DEAD_LETTER  fields `group`, `queue`, `offset` -> {"group", "topic", "queue", "offset"}: where it is now

Groups come by name, the letters of each newest first. `topic` is the one that the message was sent to. `body` is its
beginning, as text or base64, for those who may consume that topic; it is null for others, and with the field
`bodies` = false where there is an access list. A page costs a search and the
messages of the page.

A letter that is sent again goes the road of the group's retries, not to its topic, so that other groups do not get it
a second time: to `%RETRY%group+topic` when it was popped, else to `%RETRY%group`. It keeps its properties and gets as
many tries as a new message. The letter itself stays until it expires; sent twice it is delivered twice.
Invariant: a resend is answered when the new record is confirmed. Loop thread only.
"""

from __future__ import annotations

import asyncio
import base64
import codecs
from bisect import bisect_left
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from broker.groups.groups import DLQ_ORIGIN_TOPIC, ORIGIN_ID, RETRY_TOPIC, dead_letter_topic, retry_topic
from broker.pop.handles import retry_topic as pop_retry_topic
from broker.requests import RequestTools, limit_of, number, text
from broker.store.index.absence import Absence, Found
from broker.store.placed import Appended, Placed
from broker.topics.topics import queue_of_priority
from remoting.access.rights import ADMIN, CONSUME, MONITOR, of_group, of_topic
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records import names
from remoting.protocol.records.image import encode_image
from remoting.protocol.records.properties import UNIQUE_KEY
from remoting.protocol.records.record import FLAG_SYS_SHIFT, RecordView
from remoting.protocol.records.rocketmq_form import FIRST_POP_TIME, HIDDEN_PREFIX, INNER_MULTI_DISPATCH, RECONSUME_KEY
from remoting.server.router import later
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.groups.feature import ConsumerGroups
    from broker.publishing.append import Appender
    from broker.topics.feature import TopicFeature

LIMIT_MAX = 200
"""Most letters in one page."""
BODY_BYTES_MAX = 4_096
"""Of a longer body only the beginning is shown."""
STEP = 50
"""Letters, or groups without any, looked at in one turn of the loop."""
BETWEEN = ":"
_PREFIX = names.DLQ_PREFIX.encode()


class DeadLetterRequests:
    """Shows dead letters and sends them again."""

    def __init__(
        self, tools: RequestTools, *, topics: TopicFeature, groups: ConsumerGroups, appender: Appender
    ) -> None:
        self._tools = tools
        self._topics = topics
        self._groups = groups
        self._appender = appender

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {RequestCode.DEAD_LETTERS: self.dead_letters, RequestCode.RESEND_DEAD_LETTER: self.resend}

    def dead_letters(self, peer: Peer, command: Command) -> None:
        """9122: a page of dead letters."""
        self._tools.authorizer.authorize(peer, command, MONITOR, "dead letters")
        place = _place(command.fields.get("after", ""))
        later(peer, command, self._page(peer, command, place, limit_of(command, LIMIT_MAX)))

    async def _page(self, peer: Peer, command: Command, place: tuple[str, int, int] | None, limit: int) -> Command:
        rows: list[dict[str, Any]] = []
        following, looked = "", 0
        only, contains = command.fields.get("group"), command.fields.get("contains", "")
        for group in await self._groups_from(only, "" if place is None else place[0]):
            if contains not in group:
                continue
            first = place[1:] if place is not None and place[0] == group else None
            for queue, offset in self._letters(group, first):
                if len(rows) == limit:
                    following = f"{queue}{BETWEEN}{offset}{BETWEEN}{group}"
                    break
                rows.append(self._row(peer, command, group, queue, offset))
                looked += 1
                if looked % STEP == 0:
                    await asyncio.sleep(0)
            if following:
                break
            looked += 1
            if looked % STEP == 0:
                await asyncio.sleep(0)
        return command.reply(body=msgspec.json.encode({"dead_letters": rows, "next": following}))

    async def _groups_from(self, only: str | None, first: str) -> list[str]:
        """The groups that have dead letters, or had some, from this name on."""
        if only is not None:
            return [only]
        topics = await self._topics.sorted.wanted(self._tools.clock.now_ms())
        begin = bisect_left(topics, _PREFIX + first.encode())
        end = bisect_left(topics, _PREFIX + b"\xff", begin)
        return [topic[len(_PREFIX) :].decode() for topic in topics[begin:end]]

    def _letters(self, group: str, first: tuple[int, int] | None) -> list[tuple[int, int]]:
        """(queue, offset) of a group's letters, the newest of each queue first, from a place on; as many as a page may
        have and one more."""
        found: list[tuple[int, int]] = []
        for queue, queue_id in enumerate(self._topics.table.queue_ids(dead_letter_topic(group))):
            if first is not None and queue < first[0]:
                continue
            low, high = self._tools.store.reading.bounds(queue_id)
            newest = min(high - 1, first[1]) if first is not None and queue == first[0] else high - 1
            room = LIMIT_MAX + 1 - len(found)
            found += [(queue, offset) for offset in range(newest, max(low - 1, newest - room), -1)]
        return found

    def _row(self, peer: Peer, command: Command, group: str, queue: int, offset: int) -> dict[str, Any]:
        row: dict[str, Any] = {"group": group, "queue": queue, "offset": offset}
        try:
            view = self._record(group, queue, offset)
        except Refused:  # damaged, or expired meanwhile: shown without what cannot be read
            return row | {"topic": "", "damaged": True}
        topic = origin_of(view, group)
        authorizer = self._tools.authorizer
        readable = authorizer.open or (
            command.fields.get("bodies") != "false" and authorizer.allows(peer, command, CONSUME, of_topic(topic))
        )
        body, encoding = _shown(view.body) if readable else (None, "")
        properties = {bytes(key): bytes(value).decode("utf-8", "replace") for key, value in view.properties()}
        return row | {
            "topic": topic,
            "stored_ms": view.store_ms,
            "tries": int(properties.get(RECONSUME_KEY, "0")),
            "id": properties.get(ORIGIN_ID) or properties.get(UNIQUE_KEY, ""),
            "keys": bytes(view.keys).decode("utf-8", "replace"),
            "tags": bytes(view.tags).decode("utf-8", "replace"),
            "position": view.position,
            "bytes": len(view.body),
            "properties": {
                key.decode("utf-8", "replace"): value
                for key, value in properties.items() if readable and not key.startswith(HIDDEN_PREFIX)
            },
            "body": body,
            "encoding": encoding,
        }  # fmt: skip

    def _record(self, group: str, queue: int, offset: int) -> RecordView:
        """One dead letter; Refused when there is none at this place."""
        ids = self._topics.table.queue_ids(dead_letter_topic(group))
        found: Found = Absence.GONE
        if 0 <= queue < len(ids) and offset >= 0:
            found = self._tools.store.reading.record(ids[queue], offset)
        if not isinstance(found, Absence):
            return RecordView(found)
        if found is Absence.DAMAGED:
            raise Refused(ResponseCode.SYSTEM_ERROR, "the dead letter is damaged")
        raise Refused(ResponseCode.QUERY_NOT_FOUND, f"the group [{group}] has no such dead letter; it may have expired")

    def resend(self, peer: Peer, command: Command) -> None:
        """9123: give a group a message again that it gave up. Raises Refused when there is none."""
        group = text(command.fields, "group")
        self._tools.authorizer.authorize(peer, command, ADMIN, of_group(group))
        view = self._record(group, number(command.fields, "queue", 0), number(command.fields, "offset"))
        if self._groups.groups.get(group) is None:
            remark = f"the group [{group}] does not exist any more: start a consumer of it first"
            raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        topic, index, placed = self._placed(group, view)

        def done(appended: Appended | None, first: int, refused: Refused | None) -> None:
            if refused is not None:
                peer.send(command.reply(refused.code, refused.remark, refused.fields))
                return
            assert appended is not None, "a message that is not refused was stored"
            answer = {"group": group, "topic": topic, "queue": index, "offset": appended.offsets[first]}
            reply = command.reply(body=msgspec.json.encode(answer))
            self._topics.publication.when_published((topic,), partial(peer.send, reply))

        self._appender.add(placed, done)

    def _placed(self, group: str, view: RecordView) -> tuple[str, int, Placed]:
        """(topic, queue, message) of a letter that is sent again."""
        properties = {bytes(key): bytes(value) for key, value in view.properties()}
        properties.pop(INNER_MULTI_DISPATCH, None)  # its light queues have it already
        properties[RECONSUME_KEY] = b"0"
        origin, index, queues = origin_of(view, group), 0, 1
        target = retry_topic(group)
        if FIRST_POP_TIME in properties:
            target, config = pop_retry_topic(group, origin), self._topics.table.get(origin)
            if config is not None and config.has_priorities:
                index, queues = queue_of_priority(config, [properties], 0), config.read_queue_count
        self._topics.table.ensure(target, queues, maker="")
        ids = self._topics.table.queue_ids(target)
        index = min(index, len(ids) - 1)
        image = encode_image(
            flags=view.flags >> FLAG_SYS_SHIFT << FLAG_SYS_SHIFT, born_ms=view.born_ms, topic=target.encode(),
            queue_index=index, keys=bytes(view.keys), tags=bytes(view.tags), properties=list(properties.items()),
            body=bytes(view.body),
        )  # fmt: skip
        return target, index, Placed(image, [(ids[index],)])


def origin_of(view: RecordView, group: str) -> str:
    """The topic that a dead letter was sent to at first."""
    properties = dict(view.properties())
    found = properties.get(RETRY_TOPIC) or properties.get(DLQ_ORIGIN_TOPIC)
    return retry_topic(group) if not found else bytes(found).decode("utf-8", "replace")


def _place(after: str) -> tuple[str, int, int] | None:
    """(group, queue, offset) where a page begins."""
    if not after:
        return None
    queue, _, rest = after.partition(BETWEEN)
    offset, _, group = rest.partition(BETWEEN)
    if not all(part.isascii() and part.isdigit() and len(part) < 19 for part in (queue, offset)) or not group:
        raise Refused(ResponseCode.INVALID_PARAMETER, "after is no place in a list of dead letters")
    return group, int(queue), int(offset)


def _shown(body: memoryview) -> tuple[str, str]:
    """The beginning of a body and how it is written."""
    beginning = bytes(body[:BODY_BYTES_MAX])
    try:
        text_of = codecs.getincrementaldecoder("utf-8")().decode
        return text_of(beginning, len(body) <= BODY_BYTES_MAX), "text"
    except UnicodeDecodeError:
        return base64.b64encode(beginning).decode(), "base64"
