"""Offsets that another broker of the group took while it stood in for the master, merged into the log (9096).

The body is JSON: [[group, topic, queue index, offset], ...]. An offset is taken over if it is larger than the one in
the log, or there is none: a consumer goes on where it stopped, and what it committed since is not set back. An operator
who set an offset back before the merge is overruled by it. One request is one record. Offsets of queues that are not
known here, and of groups that consume by POP, are left out, counted and logged.

Invariant: no merge makes an offset smaller; the answer comes when all of it is confirmed. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from broker.requests import merged_items
from remoting.access.rights import REGISTER
from remoting.protocol.errors import Refused, RemoteViolation
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.groups.groups import GroupOffsets, Groups, OffsetGather
    from broker.requests import RequestTools
    from broker.topics.topics import ClientQueues

Item = tuple[str, str, int, int]
"""(group, topic, queue index, offset)."""


def decode_offsets(body: bytes) -> list[Item]:
    """The items of a body. Raises RemoteViolation, and Refused for too many."""
    items: list[Item] = merged_items(body, Item)
    if any(index < 0 or offset < 0 for _group, _topic, index, offset in items):
        raise RemoteViolation("an index or an offset is negative")
    return items


class OffsetMerge:
    """Takes over offsets that are ahead of the log's."""

    def __init__(
        self, tools: RequestTools, *, groups: Groups, queues: ClientQueues, offsets: GroupOffsets, commits: OffsetGather
    ) -> None:
        self._tools = tools
        self._groups, self._queues, self._offsets, self._commits = groups, queues, offsets, commits

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {Code.MERGE_OFFSETS: self.requested}

    def requested(self, peer: Peer, command: Command) -> None:
        """9096: merge; answered when the offsets are confirmed."""
        self._tools.authorizer.authorize(peer, command, REGISTER, self._tools.config.broker_name)
        self._tools.answers.reply_at(self.take(command.body), peer, command.reply())

    def take(self, body: bytes) -> int:
        """Merge what the body of such a request has; returns the position to wait for. Raises as `merge`, and for a
        body that cannot be read."""
        return self.merge(decode_offsets(body))

    def merge(self, items: Iterable[Item]) -> int:
        """Write what is ahead as one record; returns the position to wait for. Raises StoreError."""
        self._commits.flush()
        position, ahead, dropped = 0, [], 0
        for group, topic, index, offset in items:
            if not self._takes(group, topic, index):
                dropped += 1
                continue
            known = self._offsets.get(group, topic, index)
            if known is None or known[0] < offset:
                ahead.append((group, topic, index, offset))
            else:
                position = max(position, known[1])
        if dropped:
            self._tools.metrics.dropped.child("offset_not_merged").value += dropped
            self._tools.log.info("offsets_not_merged", count=dropped, reason="no such queue, or consumed by POP")
        if ahead:
            position = self._offsets.commit(ahead)
            self._tools.log.info("offsets_merged", count=len(ahead))
        return position

    def _takes(self, group: str, topic: str, index: int) -> bool:
        try:
            self._groups.require_pull(group, topic)
            return self._queues.find(topic, index) is not None
        except Refused:
            return False
