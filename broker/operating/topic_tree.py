"""TOPIC_TREE (9115): the children of one level of the MQTT topics, for operators.

Fields: `parent` (a topic or the beginning of topics; empty or missing: the first levels), `contains` (part of the
child's level), `after` (the `next` of the page before), `limit`.

    {"children": [{"level", "topic", "exists", "messages", "last_ms", "retained", "children", "below"}],
     "next", "topics"}

`exists`: there were messages with exactly this topic, `messages` of which are kept, the newest stored at `last_ms`. A
first level has the messages of all topics that begin with it. `below` counts the topics further down.

`TopicIndex` has the topics of all exact light queues in order, as keys in which a zero byte stands for the slash, so
that all topics below a level stand together. It is made on the first request, in steps between other work, follows the
log from then on, and is dropped when nobody has asked for `IDLE_MS`. A page costs a few searches per child, whatever
the number of topics; a search looks at the children in steps.
Invariant: `keys` is sorted and has each topic once. Reads only. Loop thread only.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Any

import msgspec

from broker.requests import RequestTools, limit_of
from broker.store.errors import StoreError, UnreadableOffsets
from broker.store.state import state_kinds
from remoting.access.rights import MONITOR
from remoting.protocol.errors import LocalMisuse, Refused, RemoteViolation
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records import names
from remoting.protocol.records.record import RecordView
from remoting.protocol.records.topics import is_wildcard
from remoting.server.router import later
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.retained.feature import Retained
    from broker.store.log_store import LogStore
    from broker.topics.topics import Topics

LIMIT_MAX = 200
"""Most children in one page."""
IDLE_MS = 600_000
"""Without a request for so long the index is dropped: it takes some 100 bytes for each topic."""
STEP = 2_000
"""Queue names, or children of a search, looked at in one turn of the loop: about a millisecond."""
_BETWEEN = b"\x00"
_BEHIND = b"\x01"


def key_of(queue_name: bytes) -> bytes | None:
    """The key of an exact light queue's topic; None for the queue of a filter and for other queues."""
    if not queue_name.startswith(names.LMQ_PREFIX):
        return None
    try:
        topic = names.light_queue_topic(queue_name)
    except RemoteViolation:
        return None
    return None if is_wildcard(topic) or not topic else topic.replace(b"/", _BETWEEN)


class TopicIndex:
    """All topics with a light queue, in order."""

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self.keys: list[bytes] | None = None
        """None until it is wanted."""
        self._changes: list[tuple[bytes, bool]] | None = None
        """What changed while it is being made."""
        self._making: asyncio.Future[None] | None = None
        store.state.subscribe(state_kinds.QUEUE, self._changed)

    async def wanted(self) -> list[bytes]:
        """The keys; makes them when there are none."""
        while self.keys is None:
            if self._making is None:
                self._making = asyncio.ensure_future(self._make())
            await asyncio.shield(self._making)
        return self.keys

    def drop(self) -> None:
        """Free the memory until it is wanted again."""
        if self._making is None:
            self.keys = None

    async def _make(self) -> None:
        self._changes = []
        try:
            runs: list[list[bytes]] = []
            queues = self._store.state.queues
            for begin in range(0, queues.next_id, STEP):
                found = (queues.name(queue) for queue in range(begin, min(begin + STEP, queues.next_id)))
                runs.append(sorted(key for name in found if name is not None and (key := key_of(name)) is not None))
                await asyncio.sleep(0)
                while len(runs) > 1 and len(runs[-2]) <= 2 * len(runs[-1]):
                    await _merge(runs)
            while len(runs) > 1:
                await _merge(runs)
            self.keys = runs[0] if runs else []
            changes, self._changes = self._changes, None
            for name, exists in changes:
                self._apply(name, exists=exists)
        finally:
            self._changes = self._making = None

    def _changed(self, name: bytes, value: bytes | None, _position: int) -> None:
        if self._changes is not None:
            self._changes.append((name, value is not None))
        elif self.keys is not None:
            self._apply(name, exists=value is not None)

    def _apply(self, name: bytes, *, exists: bool) -> None:
        key = key_of(name)
        if key is None or self.keys is None:
            return
        at = bisect_left(self.keys, key)
        known = at < len(self.keys) and self.keys[at] == key
        if exists and not known:
            insort(self.keys, key)
        elif known and not exists:
            del self.keys[at]


async def _merge(runs: list[list[bytes]]) -> None:
    """Make one of the last two runs: sorting finds that they are sorted, and merges them."""
    last = runs.pop()
    runs[-1] += last
    runs[-1].sort()
    await asyncio.sleep(0)


class TopicTreeRequests:
    """Shows operators the topics level by level."""

    def __init__(self, tools: RequestTools, topics: Topics, retained: Retained) -> None:
        self._tools = tools
        self._topics = topics
        self._retained = retained
        self.index = TopicIndex(tools.store)
        self._asked_ms = 0

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {RequestCode.TOPIC_TREE: self.topic_tree}

    def maintain(self, now_ms: int) -> None:
        """Drop the index when nobody looks any more."""
        if self.index.keys is not None and now_ms - self._asked_ms > IDLE_MS:
            self.index.drop()

    def topic_tree(self, peer: Peer, command: Command) -> None:
        """9115: a page of the children of a level."""
        self._tools.authorizer.authorize(peer, command, MONITOR, "topics")
        fields = command.fields
        parent = fields.get("parent", "").encode()
        if _BETWEEN in parent or is_wildcard(parent):
            raise Refused(ResponseCode.INVALID_PARAMETER, "the parent is the beginning of topics, not a filter")
        self._asked_ms = self._tools.clock.now_ms()
        asked = (parent, fields.get("after", "").encode(), fields.get("contains", "").encode())
        later(peer, command, self._page(command, *asked, limit_of(command, LIMIT_MAX)))

    async def _page(self, command: Command, parent: bytes, after: bytes, contains: bytes, limit: int) -> Command:
        keys = await self.index.wanted()
        prefix = parent.replace(b"/", _BETWEEN) + _BETWEEN if parent else b""
        found: list[bytes] = []
        following = ""
        level: bytes | None = after or None
        while True:
            step, level = _levels_after(keys, prefix, level, contains, limit + 1 - len(found))
            found += step
            if level is None or len(found) > limit:
                break
            await asyncio.sleep(0)
        if len(found) > limit:
            following = found[limit - 1].decode()
        children = [self._row(keys, prefix, level) for level in found[:limit]]
        answer = {"children": children, "next": following, "topics": len(keys)}
        return command.reply(body=msgspec.json.encode(answer))

    def _row(self, keys: list[bytes], prefix: bytes, level: bytes) -> dict[str, Any]:
        key = prefix + level
        topic = key.replace(_BETWEEN, b"/")
        begin, end = bisect_left(keys, key + _BETWEEN), bisect_left(keys, key + _BEHIND)
        queue = self._tools.store.queues.find(names.light_queue_name(topic))
        messages, last_ms = (0, None) if queue is None else self._kept(queue)
        if not prefix:
            ids = self._topics.queue_ids(names.parent_topic(topic).decode())
            counts = [self._kept(one) for one in ids]
            messages = sum(count for count, _last in counts)
            last_ms = max((last for _count, last in counts if last is not None), default=None)
        return {
            "level": level.decode(),
            "topic": topic.decode(),
            "exists": queue is not None,
            "messages": messages,
            "last_ms": last_ms,
            "retained": topic in self._retained,
            "children": end > begin,
            "below": end - begin,
        }

    def _kept(self, queue: int) -> tuple[int, int | None]:
        """(messages kept in a queue, when the newest of them was stored)."""
        try:
            low, high = self._tools.store.reading.bounds(queue)
            if low >= high:
                return 0, None
            records = self._tools.store.reading.read(queue, high - 1, 1, 1).records
        except LocalMisuse:  # deleted meanwhile
            return 0, None
        except (StoreError, UnreadableOffsets):  # damaged there; it is counted all the same
            return high - low, None
        return high - low, RecordView(records[0]).store_ms if records else None


def _levels_after(
    keys: list[bytes], prefix: bytes, level: bytes | None, contains: bytes, wanted: int
) -> tuple[list[bytes], bytes | None]:
    """The next levels below `prefix` with this text, behind `level`; and where to go on, None at the end.

    Looks at `STEP` levels at most, which cost one search each only where they have topics below them.
    """
    at = bisect_left(keys, prefix if level is None else prefix + level + _BEHIND)
    found: list[bytes] = []
    for _ in range(STEP):
        if at >= len(keys) or not keys[at].startswith(prefix):
            return found, None
        level = _level(keys[at], prefix)
        if contains in level:
            found.append(level)
        at += 1
        if at < len(keys) and keys[at].startswith(prefix + level + _BETWEEN):
            at = bisect_left(keys, prefix + level + _BEHIND, at)
        if len(found) >= wanted:
            break
    return found, level


def _level(key: bytes, prefix: bytes) -> bytes:
    return key[len(prefix) :].partition(_BETWEEN)[0]
