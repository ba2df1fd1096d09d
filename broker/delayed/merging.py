"""Delayed messages that another broker of the group delivered elsewhere while it stood in for the master (9094).

The body is JSON: [[start of the bucket in ms, offset, when it was due in ms, log position], ...]. A message that still
waits is passed over from then on, as one that was recalled is; one that does not, or is another one, is left out.

Invariant: nothing is delivered here after the answer; the answer comes when that is confirmed. Loop thread only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.delayed.buckets import ESCAPED
from broker.requests import merged_items
from remoting.access.rights import REGISTER
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.delayed.delayed import Delayed
    from broker.requests import RequestTools

Item = tuple[int, int, int, int]
"""(start of the bucket, offset in its queue, due time, log position)."""


class EscapeMerge:
    """Passes over what was delivered elsewhere."""

    def __init__(self, tools: RequestTools, messages: Delayed) -> None:
        self._tools = tools
        self._messages = messages

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {Code.MERGE_ESCAPED: self.requested}

    def requested(self, peer: Peer, command: Command) -> None:
        """9094: merge; answered when it is confirmed."""
        self._tools.authorizer.authorize(peer, command, REGISTER, self._tools.config.broker_name)
        self._tools.answers.reply_at(self.take(command.body), peer, command.reply())

    def take(self, body: bytes) -> int:
        """Merge what the body of such a request has; returns the position to wait for.

        Raises:
            Refused: this broker does not know all waiting messages yet, or there are too many items.
            RemoteViolation: the body cannot be read.
            StoreError: some of it may still be delivered; try again.
        """
        items: list[Item] = merged_items(body, Item)
        if not self._tools.is_sure:
            raise Refused(ResponseCode.SYSTEM_BUSY, "what this broker had when it became the master is not confirmed")
        position, left_out = 0, 0
        for start_ms, offset, due_ms, at in items:
            bucket = self._messages.buckets.find(start_ms)
            key = due_ms, offset
            if bucket is None or not bucket.is_waiting(key):
                left_out += bucket is None or bucket.recalled.get(offset) != ESCAPED
            elif self._tools.store.reading.positions(bucket.queue_id, offset, 1) != [at]:
                left_out += 1
            else:
                position = self._messages.drop(bucket, key, ESCAPED)
        if left_out:
            self._tools.metrics.dropped.child("escape_not_merged").value += left_out
            self._tools.log.warning("escapes_not_merged", messages=left_out, reason="they wait no more, or elsewhere")
        return max(position, self._tools.store.end_position if items and not position else position)
