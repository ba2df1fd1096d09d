"""Locks of queues while a replica stands in for the master (41, 42).

An owner renews its lock with the token that it has; a queue that is free, or whose owner has not renewed for as long as
at the master, is granted with a larger one. Grants and what is given up go into the journal, are answered when they are
on the disk, and are taken over by the next master. The locks that the log has count as renewed when this broker begins
to stand in. In strict mode more than half of the group's configured brokers must agree to each lock and renewal
(`quorum`); what is granted to nobody is taken back.

Invariant: a queue of a group has one owner here, and its token is larger than any that was seen. Loop thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from broker.acting.journal import ActingJournal
from broker.acting.kinds import LOCKS
from broker.acting.quorum import LockQuorum, claim_of, decode_claim
from broker.groups.locks import FencingTokens, LockKey, LockTable, granted_body, lock_body, stored_locks
from broker.store.state import state_kinds
from broker.topics.topics import is_light, queue_name
from remoting.access.rights import CONSUME, REGISTER, of_group
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.server.authorizer import Authorizer
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.groups.groups import QueueKey
    from broker.store.log_store import LogStore


@dataclass(frozen=True, slots=True)
class _Grants:
    """What one request of a client is about."""

    group: str
    client_id: str
    owned: list[QueueKey]
    taken: dict[LockKey, int]
    """Queues that were free, with the token that they get."""


class ActingLocks:
    """The locks that a replica knows of and grants."""

    def __init__(
        self,
        journal: ActingJournal,
        store: Callable[[], LogStore | None],
        authorizer: Authorizer,
        *,
        term: Callable[[], tuple[int, int]],
        now_ms: Callable[[], int],
        quorum: LockQuorum | None = None,
        broker_name: str = "",
    ) -> None:
        """`store`: the open log, None between two roles. `term`: the newest master epoch, and how often this broker
        has begun to stand in. `quorum`: who must agree, in strict mode; `broker_name`: the group's."""
        self._journal, self._store, self._authorizer = journal, store, authorizer
        self._term, self._now_ms = term, now_ms
        self._read: tuple[LogStore, int, tuple[int, int]] | None = None
        self._table, self._tokens = LockTable(), FencingTokens(0)
        self._quorum, self._broker_name = quorum, broker_name
        self._tasks: set[asyncio.Task[None]] = set()

    def cancel(self) -> None:
        """Grant nothing any more: another role is about to begin."""
        for task in self._tasks:
            task.cancel()

    def find(self, command: Command) -> Handler | None:
        """What answers a request while this broker stands in; None for what others answer."""
        if command.code == Code.LOCK_BATCH_MQ:
            return self.lock_batch
        return self.unlock_batch if command.code == Code.UNLOCK_BATCH_MQ else None

    def lock_batch(self, peer: Peer, command: Command) -> None:
        """41: lock queues for an orderly consumer; answers those it has, with their tokens, once that is on disk."""
        group, client_id, queues = lock_body(command)
        self._authorizer.authorize(peer, command, CONSUME, of_group(group))
        store, table = self._current()
        known = {key: queue for key, queue in queues.items() if _exists(store, key)}
        owned, free = table.claim(group, known, client_id, self._now_ms())
        token = self._tokens.next() if free else 0
        table.put(free, client_id, token, self._now_ms())

        def answer(granted: Iterable[QueueKey]) -> None:
            tokens = {queue: table[group, *queue].token for queue in granted}
            peer.send(command.reply(body=granted_body(known, tokens)))

        grants = _Grants(group, client_id, owned, dict.fromkeys(free, token))
        if self._quorum is None:
            self._grant(table, grants, answer)
        else:
            task = asyncio.get_running_loop().create_task(self._grant_if_agreed(self._quorum, table, grants, answer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def unlock_batch(self, peer: Peer, command: Command) -> None:
        """42: give up the locks of an orderly consumer."""
        group, client_id, queues = lock_body(command)
        self._authorizer.authorize(peer, command, CONSUME, of_group(group))
        _store, table = self._current()
        given_up = {key: (table[key].token, "") for key in table.owned(group, queues, client_id)}
        table.free(given_up)

        def answer(failed: Collection[LockKey]) -> None:
            if command.is_oneway:
                return
            remark = f"{len(failed)} locks are free here, but a master may not learn of it"
            peer.send(command.reply(ResponseCode.SYSTEM_ERROR, remark) if failed else command.reply())

        self._keep(given_up, answer)

    def agree(self, peer: Peer, command: Command) -> None:
        """9099: agree to what a replica that stands in wants to grant, or take it back; answered when it is on disk."""
        self._authorizer.authorize(peer, command, REGISTER, self._broker_name)
        claim = decode_claim(command.body)
        _store, table = self._current()
        group, client_id = claim.consumer_group, claim.client_id
        tokens = {(each.topic, each.queue_id): each.token for each in claim.mq_set}
        if claim.is_given_up:
            given_up = [key for key in table.owned(group, tokens, client_id) if table[key].token == tokens[key[1:]]]
            table.free(given_up)
            entries = {key: (tokens[key[1:]], "") for key in given_up}
            self._keep(entries, lambda _failed: peer.send(command.reply(body=b"[]")))
            return
        owned, free = table.claim(group, tokens, client_id, self._now_ms())
        for key in free:
            self._tokens.saw(tokens[key[1:]])
            table.put([key], client_id, tokens[key[1:]], self._now_ms())

        def answer(failed: Collection[LockKey]) -> None:
            table.free(failed)
            agreed = owned + [key[1:] for key in free if key not in failed]
            peer.send(command.reply(body=msgspec.json.encode(agreed)))

        self._keep({key: (tokens[key[1:]], client_id) for key in free}, answer)

    def _grant(self, table: LockTable, grants: _Grants, answer: Callable[[Iterable[QueueKey]], None]) -> None:
        """Write what is taken to the journal, then answer with all that the client has."""

        def kept(failed: Collection[LockKey]) -> None:
            table.free(failed)
            answer(grants.owned + [key[1:] for key in grants.taken if key not in failed])

        self._keep({key: (token, grants.client_id) for key, token in grants.taken.items()}, kept)

    async def _grant_if_agreed(
        self, quorum: LockQuorum, table: LockTable, grants: _Grants, answer: Callable[[Iterable[QueueKey]], None]
    ) -> None:
        tokens = {queue: table[grants.group, *queue].token for queue in grants.owned}
        tokens |= {key[1:]: token for key, token in grants.taken.items()}
        agreed = await quorum.agreed(claim_of(grants.group, grants.client_id, tokens))
        vain = {key[1:]: token for key, token in grants.taken.items() if key[1:] not in agreed}
        table.free((grants.group, *queue) for queue in vain)
        owned = [queue for queue in grants.owned if queue in agreed]
        taken = {key: token for key, token in grants.taken.items() if key[1:] in agreed}
        self._grant(table, _Grants(grants.group, grants.client_id, owned, taken), answer)
        if vain:
            await quorum.take_back(claim_of(grants.group, grants.client_id, vain))

    def _keep(self, entries: Mapping[LockKey, tuple[int, str]], then: Callable[[Collection[LockKey]], None]) -> None:
        """Write these to the journal, and call `then` with those that are not on the disk."""
        failed: list[LockKey] = []
        left = len(entries)
        if not left:
            then(failed)

        def done(key: LockKey, refused: Refused | None) -> None:
            nonlocal left
            left -= 1
            if refused is not None:
                failed.append(key)
            if not left:
                then(failed)

        for key, value in entries.items():
            try:
                self._journal.add(LOCKS, key, value, partial(done, key))
            except Refused as error:
                done(key, error)

    def _current(self) -> tuple[LogStore, LockTable]:
        """The log and the locks as they are now. Raises Refused while the log is closed."""
        store = self._store()
        if store is None:
            raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, "the log is not open: try again")
        read = store, store.end_position, self._term()
        if self._read != read:
            self._read = read
            self._table = self._known(store)
        return store, self._table

    def _known(self, store: LogStore) -> LockTable:
        """What the log and the journal say; each counts as renewed now."""
        now_ms = self._now_ms()
        table, self._tokens = stored_locks(store, now_ms), FencingTokens(self._term()[0], acting=True)
        for token in table.tokens():
            self._tokens.saw(token)
        for (group, topic, index), (token, client_id) in self._journal.of(LOCKS).items():
            key = group, topic, index
            self._tokens.saw(token)
            known = table.get(key)
            if known is not None and known.token > token:
                continue
            table.free([key])
            if client_id:
                table.put([key], client_id, token, now_ms)
        return table


def _exists(store: LogStore, queue: QueueKey) -> bool:
    topic, index = queue
    if is_light(topic):
        return store.queues.find(topic.encode()) is not None
    known = store.state.get(state_kinds.TOPIC, topic.encode())
    return known is not None and store.queues.find(queue_name(topic, index)) is not None
