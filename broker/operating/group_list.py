"""GROUP_LIST (9127): consumer groups with their lag, a page at a time, for operators.

    fields `contains` (part of the name), `after`, `limit`, `order` (`name`, or `lag`: the groups furthest behind first)
    -> {"groups": [{"name", "topics", "topics_total", "queues", "lag", "lag_s", "members"}], "next", "total"}

A group is listed once it has committed an offset, one of a shared subscription of MQTT while sessions share it: its
name is the whole filter, `$share/GROUP/FILTER`. `members` are those connected. `lag` is the messages of all its queues
that can be read and have not been (shared: have not been acknowledged), `lag_s` the age of the oldest of them.
By name a page costs a search and the groups of the page, of which
`QUEUES_MAX` queues at most are looked at: a page may be shorter than asked for and still have a `next`. By lag there is
one page, of `FURTHEST_MAX` groups at most: finding them takes a look at every group, in steps with other work between
them, and the result is used again for twenty times as long as it took. A search by lag looks at all groups again where
there are more.
Invariant: what is counted is confirmed. Loop thread only.
"""

from __future__ import annotations

import asyncio
import heapq
from bisect import bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from broker.requests import RequestTools, limit_of
from broker.rocketmq.statistics import stored_ms
from broker.topics.sorted_names import STEP, SortedNames
from remoting import clock
from remoting.access.rights import MONITOR
from remoting.protocol.errors import LocalMisuse, Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.topics import inner_filter
from remoting.server.router import later
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.groups.feature import ConsumerGroups
    from broker.shared.groups import SharedGroup, SharedGroups
    from broker.topics.topics import ClientQueues

LIMIT_MAX = 200
"""Most groups in one page by name."""
FURTHEST_MAX = 1_000
"""Most groups by lag."""
QUEUES_MAX = 10_000
"""Queues looked at for a page by name: each costs a read of the log."""
QUEUES_A_TURN = 500
"""Queues looked at in one turn of the loop: about a millisecond."""
TOPICS_SHOWN = 20
"""Topics named of one group; `topics_total` has how many there are."""
BY_NAME, BY_LAG = "name", "lag"
REUSE = 20
REUSE_S_MIN = 2.0


class GroupListRequests:
    """Lists consumer groups."""

    def __init__(self, tools: RequestTools, groups: ConsumerGroups, queues: ClientQueues, shared: SharedGroups) -> None:
        self._tools = tools
        self._groups = groups
        self._queues = queues
        self._shared = shared
        table = tools.store.state.group_offsets
        self._sorted = SortedNames(lambda: _steps(table.owners()))
        table.on_owner = lambda owner, exists: self._sorted.changed(owner, exists=exists)
        self._furthest: list[bytes] = []
        self._furthest_until_s = 0.0
        self._finding: asyncio.Future[None] | None = None

    def maintain(self, now_ms: int) -> None:
        """Drop the order of names when nobody looks any more."""
        self._sorted.maintain(now_ms)

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {RequestCode.GROUP_LIST: self.group_list}

    def group_list(self, peer: Peer, command: Command) -> None:
        """9127: one page with the lag of each, in the wanted order. Raises Refused for an order that there is not."""
        self._tools.authorizer.authorize(peer, command, MONITOR, "groups")
        fields = command.fields
        order, contains = fields.get("order") or BY_NAME, fields.get("contains", "").encode()
        if order not in (BY_NAME, BY_LAG):
            raise Refused(ResponseCode.INVALID_PARAMETER, f"order is {BY_NAME} or {BY_LAG}, not {order!r}")
        self._groups.commits.flush()
        if order == BY_LAG:
            answer = self._by_lag(command, contains, limit_of(command, FURTHEST_MAX))
        else:
            answer = self._by_name(command, contains, fields.get("after", "").encode(), limit_of(command, LIMIT_MAX))
        later(peer, command, answer)

    async def _by_name(self, command: Command, contains: bytes, after: bytes, limit: int) -> Command:
        names = await self._names(contains, after, limit + 1)
        rows: list[dict[str, Any]] = []
        looked = 0
        for name in names[:limit]:
            row = await self._row(name)
            rows += [row] if row is not None else []
            after = name
            looked += row["queues"] if row is not None else 0
            if looked >= QUEUES_MAX:
                break
        more = bool(names) and after != names[-1]
        return self._answer(command, rows, after.decode() if more else "")

    async def _names(self, contains: bytes, after: bytes, count: int) -> list[bytes]:
        now_ms = self._tools.clock.now_ms()
        shared = [name.encode() for name, _group in self._shared.items()]
        wanted = [name for name in shared if name > after and contains in name]
        if not contains:
            return sorted(wanted + await self._sorted.following(after, count, now_ms))[:count]
        names = await self._sorted.wanted(now_ms)
        found: list[bytes] = []
        at = bisect_right(names, after)
        while len(found) < count:
            step = names[at : at + STEP]
            found += [name for name in step if contains in name]
            if len(step) < STEP:
                break
            await asyncio.sleep(0)
            at = bisect_right(names, step[-1])  # the list may have changed
        return sorted(wanted + found)[:count]

    async def _by_lag(self, command: Command, contains: bytes, limit: int) -> Command:
        if clock.monotonic_s() >= self._furthest_until_s:
            if self._finding is None:
                self._finding = asyncio.ensure_future(self._find_furthest())
            await asyncio.shield(self._finding)
        furthest = self._furthest
        if contains and len(furthest) == FURTHEST_MAX:  # others may have the text in their names
            furthest = await self._furthest_of(contains)
        wanted = [name for name in furthest if contains in name][:limit]
        rows = [row for name in wanted if (row := await self._row(name)) is not None]
        rows.sort(key=lambda row: (-row["lag"], row["name"]))
        return self._answer(command, rows, "")

    def _answer(self, command: Command, rows: list[dict[str, Any]], following: str) -> Command:
        total = len(self._tools.store.state.group_offsets.owners()) + len(self._shared)
        return command.reply(body=msgspec.json.encode({"groups": rows, "next": following, "total": total}))

    async def _find_furthest(self) -> None:
        """Find the groups that are furthest behind, for a while."""
        started_s = clock.monotonic_s()
        try:
            self._furthest = await self._furthest_of(b"")
        finally:
            self._finding = None
        took_s = clock.monotonic_s() - started_s
        self._furthest_until_s = clock.monotonic_s() + max(REUSE * took_s, REUSE_S_MIN)

    async def _furthest_of(self, contains: bytes) -> list[bytes]:
        """Of the groups with a text in their names those that are furthest behind."""
        looked = 0
        found: list[tuple[int, bytes]] = []
        for name in self._tools.store.state.group_offsets.owners():
            looked += 1
            if contains in name:
                offsets = self._groups.offsets.of_group(name.decode())
                behind = sum(self._behind(topic, index, offset)[2] for (topic, index), offset in offsets.items())
                heapq.heappush(found, (behind, name))
                looked += len(offsets)
            if len(found) > FURTHEST_MAX:
                heapq.heappop(found)
            if looked >= QUEUES_A_TURN:
                looked = 0
                await asyncio.sleep(0)
        shared = [(name.encode(), group) for name, group in self._shared.items()]
        found += [(self._shared.behind(group).messages, name) for name, group in shared if contains in name]
        return [name for _behind, name in sorted(found, key=lambda each: (-each[0], each[1]))[:FURTHEST_MAX]]

    async def _row(self, name: bytes) -> dict[str, Any] | None:
        """One group; None when it has no offsets any more."""
        group = name.decode()
        shared = self._shared.get(group)
        if shared is not None:
            return self._shared_row(group, shared)
        offsets = self._groups.offsets.of_group(group)
        if not offsets:
            return None
        lag, oldest_ms = 0, 0
        for number, ((topic, index), offset) in enumerate(offsets.items(), 1):
            queue, low, behind, high = self._behind(topic, index, offset)
            lag += behind
            if behind and queue is not None:
                waiting = stored_ms(self._tools.store, queue, max(offset, low), low, high)
                oldest_ms = min(oldest_ms or waiting, waiting or oldest_ms)
            if number % QUEUES_A_TURN == 0:
                await asyncio.sleep(0)
        topics = sorted({topic for topic, _index in offsets})
        return {
            "name": group,
            "topics": topics[:TOPICS_SHOWN],
            "topics_total": len(topics),
            "queues": len(offsets),
            "lag": lag,
            "lag_s": max(0, self._tools.clock.now_ms() - oldest_ms) / 1_000 if oldest_ms else 0.0,
            "members": len(self._groups.clients.members(group)),
        }

    def _shared_row(self, name: str, group: SharedGroup) -> dict[str, Any]:
        behind = self._shared.behind(group)
        oldest_ms = 0
        if behind.messages:
            oldest_ms = stored_ms(self._tools.store, group.queue_id, behind.offset, behind.begin, behind.end)
        return {
            "name": name,
            "topics": [inner_filter(name)],
            "topics_total": 1,
            "queues": 1,
            "lag": behind.messages,
            "lag_s": max(0, self._tools.clock.now_ms() - oldest_ms) / 1_000 if oldest_ms else 0.0,
            "members": len(group.members),
        }

    def _behind(self, topic: str, index: int, offset: int) -> tuple[int | None, int, int, int]:
        """Queue, its oldest offset, messages that the group has not read, its end; of a removed queue nothing."""
        try:
            queue = self._queues.find(topic, index)
            low, high = (0, 0) if queue is None else self._tools.store.reading.bounds(queue)
        except (Refused, LocalMisuse):
            return None, 0, 0, 0
        return queue, low, max(0, high - max(offset, low)), high


def _steps(names: list[bytes]) -> Iterator[list[bytes]]:
    for begin in range(0, len(names), STEP):
        yield names[begin : begin + STEP]
