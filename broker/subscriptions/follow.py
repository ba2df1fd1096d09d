"""FOLLOW (9002) and NOTIFY (9003): notify each proxy of the growth of the queues it follows.

A proxy registers the queues it has subscribers for; when the confirm position moves, every proxy concerned gets one
one-way NOTIFY with (queue id, confirmed end) of all its queues that have grown. A proxy that requests it (field
`records`) gets the small records just confirmed in the same frame, straight from memory, and need not pull them; all
others are pulled. A proxy on this machine that requests `all` and may read everything gets them as they were written,
because sending a record too many costs less there than choosing. A proxy whose output is full is sent nothing; the ids
of its queues are kept and sent when there is room, so a slow proxy costs a set, not a buffer.
Invariant: a follower is eventually notified of the last end of each queue it follows. Loop thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from broker.store.append.appender import record_of
from remoting.access.rights import CONSUME
from remoting.native.contracts import Encoded
from remoting.protocol.bodies.follow_body import decode_follow, encode_follow_reply, encode_notify
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import FLAG_ONEWAY, Command
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.store.log_store import LogStore
    from broker.topics.topics import VisibleQueues
    from remoting.server.authorizer import Authorizer

PUSHED_BYTES_MAX = 64 * 1024
"""Bytes of records in one NOTIFY; the rest is pulled."""
WHOLE_BYTES_MAX = 1024 * 1024
"""The same for a proxy that gets the records as they were written."""
RECORDS_FIELD = "records"
"""Field of FOLLOW: "1" requests records in NOTIFY, "all" allows records of other queues among them."""
RETRY_SECONDS = 0.02
"""Pause before a follower whose output was full is tried again."""


class _Follower:
    """One proxy connection: its queues whose new ends it has not been sent, and the records to be sent with them."""

    __slots__ = ("alone", "peer", "pending", "pushed", "pushed_bytes", "takes_whole", "wants_records")

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.alone: tuple[_Follower, ...] = (self,)
        """The followers of a queue that only this one follows: one object for all such queues."""
        self.pending: set[int] = set()
        self.wants_records = False
        """Whether records are chosen for it, one by one."""
        self.takes_whole = False
        """Whether it gets the records as they were written."""
        self.pushed: dict[int, bytes] = {}
        """Log position -> record, for the next NOTIFY; in order of the log."""
        self.pushed_bytes = 0

    def push(self, batch: Encoded, position: int, size: int) -> None:
        """Send this record with the next NOTIFY if there is room."""
        if position not in self.pushed and self.pushed_bytes + size <= PUSHED_BYTES_MAX:
            self.pushed[position] = record_of(batch, position, size)
            self.pushed_bytes += size

    def take_pushed(self) -> list[bytes]:
        """The records for this NOTIFY."""
        records = list(self.pushed.values())
        self.pushed.clear()
        self.pushed_bytes = 0
        return records


class Followers:
    """Followers by queue; one NOTIFY per follower and move of the confirm position."""

    def __init__(
        self, store: LogStore, authorizer: Authorizer, visible: VisibleQueues, hidden: Collection[int]
    ) -> None:
        """`hidden`: queues whose records are never pushed."""
        self._authorizer = authorizer
        self._visible = visible
        self._hidden = hidden
        self._end_of = store.reading.confirmed_end
        self._by_queue: dict[int, tuple[_Follower, ...]] = {}
        """Mostly one: a set for each queue would cost four times as much."""
        self._followers: dict[Peer, _Follower] = {}
        self._choosing: list[_Follower] = []
        """Followers whose records are chosen one by one."""
        self._fresh: Sequence[Encoded] = ()
        """What was just confirmed."""
        self.notified = 0
        self.held_back = 0

    def __len__(self) -> int:
        return len(self._followers)

    def follow(self, queue_id: int) -> bool:
        """Whether any proxy follows a queue."""
        return queue_id in self._by_queue

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {RequestCode.FOLLOW: self.handle}

    def handle(self, peer: Peer, command: Command) -> Command:
        """FOLLOW: add and remove queues, answer the confirmed end of each added one."""
        add, remove = decode_follow(command.body)
        if not self._authorizer.trusts(peer, command):
            for queue_id in add:
                self._authorizer.authorize(peer, command, CONSUME, self._visible.title(queue_id))
        follower = self._followers.get(peer)
        if follower is None:
            follower = self._followers[peer] = _Follower(peer)
            peer.on_close(lambda _reason: self._forget(peer))
        self._choose_records(follower, command)
        for queue_id in remove:
            self._leave(follower, queue_id)
        ends = []
        for queue_id in add:
            ends.append(self._visible.end(queue_id))
            known = self._by_queue.get(queue_id)
            if known is None:
                self._by_queue[queue_id] = follower.alone
            elif follower not in known:
                self._by_queue[queue_id] = (*known, follower)
        return command.reply(body=encode_follow_reply(ends))

    def _choose_records(self, follower: _Follower, command: Command) -> None:
        """Note which records the follower requested; its last FOLLOW counts."""
        peer, records = follower.peer, command.fields.get(RECORDS_FIELD)
        follower.takes_whole = records == "all" and peer.loopback and self._authorizer.trusts(peer, command)
        follower.wants_records = records in ("1", "all") and not follower.takes_whole
        self._choosing = [one for one in self._followers.values() if one.wants_records]

    def confirmed(self, batches: Sequence[Encoded]) -> None:
        """These batches were confirmed: keep for each follower what its next NOTIFY brings."""
        by_queue, hidden = self._by_queue, self._hidden
        self._fresh = batches
        if not by_queue or not self._choosing:
            return
        for batch in batches:
            queues, _offsets, positions, sizes, _tags, _counts = batch.entries.columns()
            for queue_id, position, size in zip(queues, positions, sizes, strict=True):
                for follower in by_queue.get(queue_id, ()):
                    if follower.wants_records and queue_id not in hidden:
                        follower.push(batch, position, size)

    def advanced(self, queue_ids: Sequence[int]) -> None:
        """The confirmed ends of these queues moved."""
        by_queue = self._by_queue
        concerned: dict[_Follower, None] = {}
        for queue_id in queue_ids:
            followers = by_queue.get(queue_id)
            if followers is not None:
                for follower in followers:
                    follower.pending.add(queue_id)
                    concerned[follower] = None
        for follower in concerned:
            self._notify(follower)
        self._fresh = ()

    def _notify(self, follower: _Follower) -> None:
        if not follower.pending or follower.peer not in self._followers:
            return
        if not follower.peer.writable:
            self.held_back += 1
            follower.take_pushed()  # when there is room again they are pulled
            asyncio.get_running_loop().call_later(RETRY_SECONDS, self._notify, follower)
            return
        ends = []
        for queue_id in follower.pending:
            ends.append((queue_id, self._end_of(queue_id)))  # noqa: PERF401 - compiled, a comprehension is a call
        follower.pending.clear()
        self.notified += 1
        records = self._written() if follower.takes_whole else follower.take_pushed()
        follower.peer.send(Command(RequestCode.NOTIFY, flag=FLAG_ONEWAY, body=encode_notify(ends, records)))

    def _written(self) -> list[bytes]:
        """What was just confirmed, as it was written and as far as it is sent."""
        records: list[bytes] = []
        room = WHOLE_BYTES_MAX
        for batch in self._fresh:
            for _position, data in batch.pieces:
                room -= len(data)
                if room < 0:
                    return records
                records.append(data)
        return records

    def _leave(self, follower: _Follower, queue_id: int) -> None:
        follower.pending.discard(queue_id)
        left = tuple(one for one in self._by_queue.get(queue_id, ()) if one is not follower)
        if left:
            self._by_queue[queue_id] = left
        else:
            self._by_queue.pop(queue_id, None)

    def _forget(self, peer: Peer) -> None:
        follower = self._followers.pop(peer, None)
        if follower is not None:
            for queue_id in [queue_id for queue_id, known in self._by_queue.items() if follower in known]:
                self._leave(follower, queue_id)
            follower.alone = ()
            self._choosing = [one for one in self._choosing if one is not follower]
