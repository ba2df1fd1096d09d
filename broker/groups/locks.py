"""Queue locks of orderly consumers: one client of a group at a time consumes a queue.

```
QUEUE_LOCK    key = group, 0x00, topic, 0x00, queue index as decimal text    value = fencing token i64 LE, client id
```
A client locks its queues with LOCK_BATCH_MQ (41), repeats that every 20 s, and gives them up with UNLOCK_BATCH_MQ
(42). A lock without a renewal for 60 s is free. Its owner is a record of the log; renewals are kept in memory only, so
a start of the broker and a new master count as one: each lock waits for its owner for another 60 s. The record is
confirmed, in a broker group by every member of the SyncStateSet, before the lock is granted: that is the quorum of a
lock.

The fencing token of a lock is the log position at which it was taken. Of two owners of a queue the later one has the
larger token, across restarts and masters too; a renewal keeps it. `Fence` refuses offsets that a member of the group
commits for a queue that another member has locked: a consumer that was paused while its lock expired moves no offset.

Invariant: a queue of a group has at most one owner, and only queues that exist are locked. Loop thread only.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from broker.groups.groups import group_offset_key
from broker.requests import json_body
from broker.store.state import state_kinds
from broker.store.state.state_kinds import StateChange
from remoting.access.rights import CONSUME, of_group
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
_TOKEN = struct.Struct("<q")

LockKey = tuple[str, str, int]
"""(group, topic, queue index)."""


@dataclass(slots=True)
class QueueLock:
    """Owner, fencing token and last renewal of one queue."""

    client_id: str
    token: int
    renewed_ms: int


class QueueLocks:
    """The locks of all groups: a view of their records, with the time of the last renewal."""

    def __init__(self, store: LogStore, now_ms: int) -> None:
        """Locks that are stored count as renewed now."""
        self._store = store
        self._locks: dict[LockKey, QueueLock] = {}
        for key, (value, _position) in list(store.state.items(state_kinds.QUEUE_LOCK)):
            group, topic, index = bytes(key).decode().split("\x00")
            (token,) = _TOKEN.unpack_from(value)
            client_id = bytes(value[_TOKEN.size :]).decode()
            self._locks[group, topic, int(index)] = QueueLock(client_id, token, now_ms)

    def __len__(self) -> int:
        return len(self._locks)

    def owner(self, group: str, topic: str, index: int) -> str | None:
        """The client that has locked a queue; None for a free one."""
        lock = self._locks.get((group, topic, index))
        return None if lock is None else lock.client_id

    def lock(
        self, group: str, queues: Iterable[QueueKey], client_id: str, now_ms: int
    ) -> tuple[dict[QueueKey, int], int]:
        """Take or renew queues for a client: (queue -> fencing token of those it has now, position to wait for)."""
        granted: dict[QueueKey, int] = {}
        taken: dict[LockKey, QueueLock] = {}
        token = self._store.end_position
        for queue in queues:
            key = (group, *queue)
            lock = self._locks.get(key)
            if lock is None or (lock.client_id != client_id and now_ms - lock.renewed_ms >= LOCK_EXPIRY_MS):
                lock = taken[key] = QueueLock(client_id, token, now_ms)
            if lock.client_id == client_id:
                lock.renewed_ms = now_ms
                granted[queue] = lock.token
        if not taken:
            return granted, max(granted.values(), default=-1) + 1
        value = _TOKEN.pack(token) + client_id.encode()
        changes = [StateChange(state_kinds.QUEUE_LOCK, group_offset_key(*key), value) for key in taken]
        position = self._store.append_state(changes)
        self._locks.update(taken)
        return granted, position

    def unlock(self, group: str, queues: Iterable[QueueKey], client_id: str) -> int:
        """Free those of the queues that the client has; returns the position to wait for."""
        keys = [(group, *queue) for queue in queues]
        return self._free([key for key in keys if key in self._locks and self._locks[key].client_id == client_id])

    def expire(self, now_ms: int) -> None:
        """Free locks that were not renewed."""
        self._free([key for key, lock in self._locks.items() if now_ms - lock.renewed_ms >= LOCK_EXPIRY_MS])

    def _free(self, keys: Collection[LockKey]) -> int:
        if not keys:
            return 0
        changes = [StateChange(state_kinds.QUEUE_LOCK, group_offset_key(*key), None) for key in keys]
        position = self._store.append_state(changes)
        for key in keys:
            del self._locks[key]
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
    """LOCK_BATCH_MQ and UNLOCK_BATCH_MQ."""

    def __init__(self, tools: RequestTools, *, groups: Groups, queues: ClientQueues, locks: QueueLocks) -> None:
        self._tools = tools
        self._groups = groups
        self._queues = queues
        self._locks = locks

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {Code.LOCK_BATCH_MQ: self.lock_batch, Code.UNLOCK_BATCH_MQ: self.unlock_batch}

    def lock_batch(self, peer: Peer, command: Command) -> None:
        """41: lock queues for an orderly consumer; answers those it has, with their tokens, when they are confirmed."""
        group, client_id, queues = _lock_body(command)
        self._tools.authorizer.authorize(peer, command, CONSUME, of_group(group))
        self._groups.ensure(group)
        known = {key: queue for key, queue in queues.items() if self._exists(key)}
        granted, position = self._locks.lock(group, known, client_id, self._tools.clock.now_ms())
        body = {
            "lockOKMQSet": [known[key] for key in granted],
            "fencingTokens": [known[key] | {"token": token} for key, token in granted.items()],
        }
        self._tools.answers.reply_at(position, peer, command.reply(body=msgspec.json.encode(body)))

    def _exists(self, queue: QueueKey) -> bool:
        try:
            return self._queues.find(*queue) is not None
        except Refused:
            return False

    def unlock_batch(self, peer: Peer, command: Command) -> None:
        """42: give up the locks of an orderly consumer."""
        group, client_id, queues = _lock_body(command)
        self._tools.authorizer.authorize(peer, command, CONSUME, of_group(group))
        position = self._locks.unlock(group, queues, client_id)
        if not command.is_oneway:
            self._tools.answers.reply_at(position, peer, command.reply())


def _lock_body(command: Command) -> tuple[str, str, dict[QueueKey, dict[str, Any]]]:
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
