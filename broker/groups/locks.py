"""Queue locks of orderly consumers: one client of a group at a time consumes a queue.

```
QUEUE_LOCK    key = group, 0x00, topic, 0x00, queue index as decimal text    value = fencing token i64 LE, client id
```
A client locks its queues with LOCK_BATCH_MQ (41), repeats that every 20 s, and gives them up with UNLOCK_BATCH_MQ
(42). A lock without a renewal for 60 s is free. Its owner is a record of the log; renewals are kept in memory only, so
a start of the broker and a new master count as one: each lock waits for its owner for another 60 s. The record is
confirmed, in a broker group by every member of the SyncStateSet, before the lock is granted: that is the quorum of a
lock.

A fencing token is made of the epoch in which a lock was taken and a count (`FencingTokens`). Of two owners of a queue
the later one has the larger token, across restarts and masters too; a renewal keeps it. `Fence` refuses offsets that a
member of the group commits for a queue that another member has locked: a consumer that was paused while its lock
expired moves no offset.

A replica that stands in for the master grants locks, too (`broker.acting.locks`). The next master takes them over
(9098): [[group, topic, queue index, token, client id], ...], an empty id for a lock that was given up; what has the
larger token counts. Where a replica may have stood in, a new master gives free queues to nobody for `HOLD_MS`.

Invariant: a queue of a group has at most one owner, and only queues that exist are locked. Loop thread only.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from broker.groups.groups import group_offset_key
from broker.requests import json_body, merged_items
from broker.store.state import state_kinds
from broker.store.state.state_kinds import StateChange
from remoting.access.rights import CONSUME, REGISTER, of_group
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.groups.groups import Clients, Groups, QueueKey
    from broker.requests import RequestTools
    from broker.store.log_store import LogStore
    from broker.topics.topics import ClientQueues

LOCK_EXPIRY_MS = 60_000
HOLD_MS = 3_000
"""Longer than a replica stands in after a name server lists a master, and the way of its locks to it."""
_TOKEN = struct.Struct("<q")
EPOCH_BITS = 40
ACTING_BIT = 1 << EPOCH_BITS - 1
"""Tokens of a replica that stands in for the master of an epoch are above the master's own, below the next one's."""

LockKey = tuple[str, str, int]
"""(group, topic, queue index)."""
Item = tuple[str, str, int, int, str]
"""(group, topic, queue index, token, client id): a lock that a replica granted; without an id it is given up."""


@dataclass(slots=True)
class QueueLock:
    """Owner, fencing token and last renewal of one queue."""

    client_id: str
    token: int
    renewed_ms: int
    position: int = 0
    """The log is confirmed up to there before the owner is told."""


class FencingTokens:
    """Makes fencing tokens, each larger than all before it."""

    def __init__(self, epoch: int, *, acting: bool = False) -> None:
        self._last = (epoch << EPOCH_BITS) + (ACTING_BIT if acting else 0)

    def saw(self, token: int) -> None:
        """A lock has this token: those to come are larger."""
        self._last = max(self._last, token)

    def next(self) -> int:
        """A token above those that were made or seen before."""
        self._last += 1
        return self._last


class LockTable:
    """Which client has which queue, by the rules of renewal and expiry. Pure."""

    def __init__(self, locks: dict[LockKey, QueueLock] | None = None) -> None:
        self._locks = locks or {}

    def __len__(self) -> int:
        return len(self._locks)

    def __getitem__(self, key: LockKey) -> QueueLock:
        return self._locks[key]

    def get(self, key: LockKey) -> QueueLock | None:
        """The lock of a queue; None for a free one."""
        return self._locks.get(key)

    def tokens(self) -> Iterable[int]:
        """The tokens of all locks."""
        return (lock.token for lock in self._locks.values())

    def claim(
        self, group: str, queues: Iterable[QueueKey], client_id: str, now_ms: int
    ) -> tuple[list[QueueKey], list[LockKey]]:
        """Renew what a client has: (the queues it has, those that it may take)."""
        owned: list[QueueKey] = []
        free: list[LockKey] = []
        for queue in queues:
            key = (group, *queue)
            lock = self._locks.get(key)
            if lock is not None and lock.client_id == client_id:
                lock.renewed_ms = now_ms
                owned.append(queue)
            elif lock is None or now_ms - lock.renewed_ms >= LOCK_EXPIRY_MS:
                free.append(key)
        return owned, free

    def put(self, keys: Iterable[LockKey], client_id: str, token: int, now_ms: int, position: int = 0) -> None:
        """A client has these from now on."""
        for key in keys:
            self._locks[key] = QueueLock(client_id, token, now_ms, position)

    def owned(self, group: str, queues: Iterable[QueueKey], client_id: str) -> list[LockKey]:
        """Those of the queues that a client has."""
        keys = [(group, *queue) for queue in queues]
        return [key for key in keys if key in self._locks and self._locks[key].client_id == client_id]

    def expired(self, now_ms: int) -> list[LockKey]:
        """Those that were not renewed for too long."""
        return [key for key, lock in self._locks.items() if now_ms - lock.renewed_ms >= LOCK_EXPIRY_MS]

    def free(self, keys: Iterable[LockKey]) -> None:
        """Nobody has these any more."""
        for key in keys:
            self._locks.pop(key, None)


def stored_locks(store: LogStore, now_ms: int) -> LockTable:
    """The locks in a log, each as if it were renewed now."""
    locks: dict[LockKey, QueueLock] = {}
    for key, (value, position) in list(store.state.items(state_kinds.QUEUE_LOCK)):
        group, topic, index = bytes(key).decode().split("\x00")
        (token,) = _TOKEN.unpack_from(value)
        client_id = bytes(value[_TOKEN.size :]).decode()
        locks[group, topic, int(index)] = QueueLock(client_id, token, now_ms, position + 1)
    return LockTable(locks)


class QueueLocks:
    """The locks of all groups: a view of their records, with the time of the last renewal."""

    def __init__(self, store: LogStore, now_ms: int, hold_ms: int = 0) -> None:
        """Locks that are stored count as renewed now. `hold_ms`: for so long free queues are not taken."""
        self._store = store
        self._table = stored_locks(store, now_ms)
        self._hold_until_ms = now_ms + hold_ms
        self._tokens = FencingTokens(store.epoch)
        self._merged: dict[LockKey, int] = {}
        """Tokens that were taken over: what is told again is old."""
        for token in self._table.tokens():
            self._tokens.saw(token)

    def __len__(self) -> int:
        return len(self._table)

    def owner(self, group: str, topic: str, index: int) -> str | None:
        """The client that has locked a queue; None for a free one."""
        lock = self._table.get((group, topic, index))
        return None if lock is None else lock.client_id

    def lock(
        self, group: str, queues: Iterable[QueueKey], client_id: str, now_ms: int
    ) -> tuple[dict[QueueKey, int], int]:
        """Take or renew queues for a client: (queue -> fencing token of those it has now, position to wait for)."""
        owned, free = self._table.claim(group, queues, client_id, now_ms)
        if free and now_ms >= self._hold_until_ms:
            self._take(free, client_id, self._tokens.next(), now_ms)
            owned += [(topic, index) for _group, topic, index in free]
        locks = {queue: self._table[group, *queue] for queue in owned}
        position = max((lock.position for lock in locks.values()), default=0)
        return {queue: lock.token for queue, lock in locks.items()}, position

    def take_over(self, items: Iterable[Item], now_ms: int) -> int:
        """Take over what a replica granted, or saw given up; returns the position to wait for. Raises StoreError."""
        position = 0
        for group, topic, index, token, client_id in items:
            key = (group, topic, index)
            known = self._table.get(key)
            is_new = token > self._merged.get(key, -1) and (known is None or known.token < token)
            self._tokens.saw(token)
            if client_id and is_new:
                self._take([key], client_id, token, now_ms)
            elif not client_id and known is not None and known.token <= token:
                position = max(position, self._free([key]))
            self._merged[key] = max(token, self._merged.get(key, 0))
            lock = self._table.get(key)
            position = max(position, 0 if lock is None else lock.position)
        return position

    def unlock(self, group: str, queues: Iterable[QueueKey], client_id: str) -> int:
        """Free those of the queues that the client has; returns the position to wait for."""
        return self._free(self._table.owned(group, queues, client_id))

    def expire(self, now_ms: int) -> None:
        """Free locks that were not renewed."""
        self._free(self._table.expired(now_ms))

    def _take(self, keys: Collection[LockKey], client_id: str, token: int, now_ms: int) -> None:
        value = _TOKEN.pack(token) + client_id.encode()
        changes = [StateChange(state_kinds.QUEUE_LOCK, group_offset_key(*key), value) for key in keys]
        self._table.put(keys, client_id, token, now_ms, self._store.append_state(changes))

    def _free(self, keys: Collection[LockKey]) -> int:
        if not keys:
            return 0
        changes = [StateChange(state_kinds.QUEUE_LOCK, group_offset_key(*key), None) for key in keys]
        position = self._store.append_state(changes)
        self._table.free(keys)
        return position


class Fence:
    """Decides which offsets may be committed."""

    def __init__(self, tools: RequestTools, locks: QueueLocks, clients: Clients) -> None:
        self._tools = tools
        self._locks = locks
        self._clients = clients

    def allows(self, peer: Peer, group: str, topic: str, index: int) -> bool:
        """False, counted and logged, for a member of the group while another one has locked the queue."""
        owner = self._locks.owner(group, topic, index)
        if owner is None or self._clients.peer_of(owner) is peer:
            return True
        member = next((one for one in self._clients.clients_of(group) if one.peer is peer), None)
        if member is None:
            return True  # an administrator, or the owner on a new connection before its heartbeat
        self._tools.metrics.dropped.child("offset_fenced").value += 1
        self._tools.log.info(
            "offset_fenced", group=group, topic=topic, queue=index, client_id=member.client_id, owner=owner
        )
        return False


class LockRequests:
    """LOCK_BATCH_MQ and UNLOCK_BATCH_MQ, and what a replica brings."""

    def __init__(self, tools: RequestTools, *, groups: Groups, queues: ClientQueues, locks: QueueLocks) -> None:
        self._tools = tools
        self._groups = groups
        self._queues = queues
        self._locks = locks

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {
            Code.LOCK_BATCH_MQ: self.lock_batch,
            Code.UNLOCK_BATCH_MQ: self.unlock_batch,
            Code.MERGE_LOCKS: self.merge,
        }

    def lock_batch(self, peer: Peer, command: Command) -> None:
        """41: lock queues for an orderly consumer; answers those it has, with their tokens, when they are confirmed."""
        group, client_id, queues = lock_body(command)
        self._tools.authorizer.authorize(peer, command, CONSUME, of_group(group))
        self._groups.ensure(group)
        known = {key: queue for key, queue in queues.items() if self._exists(key)}
        granted, position = self._locks.lock(group, known, client_id, self._tools.clock.now_ms())
        self._tools.answers.reply_at(position, peer, command.reply(body=granted_body(known, granted)))

    def _exists(self, queue: QueueKey) -> bool:
        try:
            return self._queues.find(*queue) is not None
        except Refused:
            return False

    def merge(self, peer: Peer, command: Command) -> None:
        """9098: take over what a replica granted; answered when that is confirmed."""
        self._tools.authorizer.authorize(peer, command, REGISTER, self._tools.config.broker_name)
        self._tools.answers.reply_at(self.take(command.body), peer, command.reply())

    def take(self, body: bytes) -> int:
        """Take over what the body of such a request has; returns the position to wait for. Locks of queues that are not
        known here are left out. Raises StoreError, and RemoteViolation or Refused as `merged_items`."""
        items: list[Item] = merged_items(body, Item)
        known = [item for item in items if self._exists((item[1], item[2]))]
        if len(known) < len(items):
            self._tools.log.info("locks_not_merged", count=len(items) - len(known), reason="no such queue")
        return self._locks.take_over(known, self._tools.clock.now_ms())

    def unlock_batch(self, peer: Peer, command: Command) -> None:
        """42: give up the locks of an orderly consumer."""
        group, client_id, queues = lock_body(command)
        self._tools.authorizer.authorize(peer, command, CONSUME, of_group(group))
        position = self._locks.unlock(group, queues, client_id)
        if not command.is_oneway:
            self._tools.answers.reply_at(position, peer, command.reply())


def granted_body(queues: Mapping[QueueKey, dict[str, Any]], granted: Mapping[QueueKey, int]) -> bytes:
    """Body of an answer with the queues that a client has, as it named them, and their tokens."""
    tokens = [queues[key] | {"token": token} for key, token in granted.items()]
    return msgspec.json.encode({"lockOKMQSet": [queues[key] for key in granted], "fencingTokens": tokens})


def lock_body(command: Command) -> tuple[str, str, dict[QueueKey, dict[str, Any]]]:
    """Group, client and queues, as the client named them, of a request about locks. Raises Refused."""
    body = json_body(command)
    queues = [queue for queue in body.get("mqSet") or () if isinstance(queue, dict)]
    group, client_id = body.get("consumerGroup"), body.get("clientId")
    if not isinstance(group, str) or not isinstance(client_id, str) or not group or not client_id:
        raise Refused(ResponseCode.INVALID_PARAMETER, "a lock needs consumerGroup and clientId")
    return group, client_id, {_queue_key(queue): queue for queue in queues}


def _queue_key(queue: dict[str, Any]) -> QueueKey:
    try:
        return str(queue["topic"]), int(queue["queueId"])
    except (KeyError, ValueError, TypeError) as error:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"a queue of mqSet is malformed: {error}") from error
