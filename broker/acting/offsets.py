"""Offsets of RocketMQ's consumer groups while a replica stands in for the master, and how they reach one.

    15 UPDATE_CONSUMER_OFFSET     into the journal, answered when it is on the disk; pulls bring offsets too
    14 QUERY_CONSUMER_OFFSET      the larger one of the journal's and the log's; only for what the journal has
    9096 MERGE_OFFSETS            the journal, to a master (`broker.groups.merging`)

The replica sends its journal as soon as it follows a master, and forgets what was answered; one that becomes the master
itself merges it into its own log. Invariant: an offset is forgotten here only after a master has confirmed it. Loop
thread only.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from broker.acting.journal import CommitJournal, CommitKey
from broker.groups.groups import GroupOffsets
from broker.groups.merging import MERGED_MAX, OffsetMerge, encode_offsets
from broker.requests import number, text
from broker.store.errors import StoreError
from remoting.access.rights import CONSUME, of_group, of_topic
from remoting.protocol.errors import LightMQError, Refused
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.server.authorizer import Authorizer
from remoting.transport.contracts import Dial, Handler, Peer
from remoting.transport.failures import checked

if TYPE_CHECKING:
    from broker.store.log_store import LogStore

RETRY_S = 0.5
"""Pause before offsets that no master took are offered again."""
TIMEOUT_MS = 5_000


class ActingOffsets:
    """The offsets that one replica keeps for a master."""

    def __init__(
        self, journal: CommitJournal, store: Callable[[], LogStore | None], authorizer: Authorizer, dial: Dial, log: Any
    ) -> None:
        """`store`: the open log, None between two roles. `dial` connects to a master, at its address for clients."""
        self.journal = journal
        self._store, self._authorizer, self._dial, self._log = store, authorizer, dial, log
        self._handing: asyncio.Task[None] | None = None

    @property
    def count(self) -> int:
        """How many no master has yet."""
        return len(self.journal.offsets)

    def find(self, command: Command) -> Handler | None:
        """What answers a request while this broker stands in; None for what others answer."""
        if command.code == Code.UPDATE_CONSUMER_OFFSET:
            return self.commit
        if (
            command.code == Code.QUERY_CONSUMER_OFFSET
            and self.journal.offsets
            and _key(command) in self.journal.offsets
        ):
            return self.query
        return None

    def commit(self, peer: Peer, command: Command) -> None:
        """15: keep a group's offset for a master; answered when it is on the disk here."""
        key, offset = self._allowed(peer, command), number(command.fields, "commitOffset")
        if offset < 0:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"commitOffset {offset} is negative")

        def done(refused: Refused | None) -> None:
            if not command.is_oneway:
                peer.send(command.reply() if refused is None else command.reply(refused.code, refused.remark))

        self.journal.add(key, offset, done)

    def keep(self, key: CommitKey, offset: int) -> bool:
        """Keep an offset for a master, without an answer; False when the journal is full."""
        if offset > self.journal.offsets.get(key, -1):
            try:
                self.journal.add(key, offset, lambda _error: None)
            except Refused:
                return False
        return True

    def query(self, peer: Peer, command: Command) -> Command:
        """14: the offset a group committed here, or a larger one that its master has confirmed before."""
        key = self._allowed(peer, command)
        offset, store = self.journal.offsets[key], self._store()
        if store is not None:
            found = GroupOffsets(store).get(*key)
            if found is not None and found[1] <= store.confirm_position:
                offset = max(offset, found[0])
        return command.reply(fields={"offset": str(offset)})

    # -- a master is there again ---------------------------------------------------------------------------------------

    def hand_over(self, address: str) -> None:
        """Send what was committed here to the master at this address, until it has everything or another role comes."""
        self.cancel()
        if address and self.journal.offsets:
            self._handing = asyncio.get_running_loop().create_task(self._hand_over(partial(self._send, address)))

    def merge_into(self, merge: OffsetMerge) -> None:
        """This broker is the master now: what was committed here goes into its own log."""
        self.cancel()
        if self.journal.offsets:
            self._handing = asyncio.get_running_loop().create_task(self._hand_over(partial(self._merge, merge)))

    def cancel(self) -> None:
        """Hand nothing over any more."""
        if self._handing is not None:
            self._handing.cancel()
            self._handing = None

    async def stop(self) -> None:
        """End the hand-over; what is left stays in the journal."""
        handing = self._handing
        self.cancel()
        if handing is not None:
            await asyncio.gather(handing, return_exceptions=True)

    async def _hand_over(self, give: Callable[[Mapping[CommitKey, int]], Awaitable[None]]) -> None:
        total, said = 0, ""
        while self.journal.offsets:
            part = dict(islice(self.journal.offsets.items(), MERGED_MAX))
            try:
                await give(part)
                await self.journal.handed_over(part)
            except (LightMQError, StoreError, OSError) as error:
                if str(error) != said:
                    said = str(error)
                    self._log.info("acting_offsets_not_taken", error=said)
                await asyncio.sleep(RETRY_S)
            else:
                total += len(part)
        self._log.info("acting_offsets_handed_over", offsets=total)

    async def _send(self, address: str, part: Mapping[CommitKey, int]) -> None:
        connection = await self._dial(address)
        try:
            command = Command(Code.MERGE_OFFSETS, body=encode_offsets(part))
            checked(await connection.request(command, TIMEOUT_MS))
        finally:
            with contextlib.suppress(LightMQError, OSError):
                await connection.close()

    async def _merge(self, merge: OffsetMerge, part: Mapping[CommitKey, int]) -> None:
        merged: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def confirmed(error: Exception | None) -> None:
            if not merged.done():
                merged.set_result(None) if error is None else merged.set_exception(error)

        position = merge.merge((*key, offset) for key, offset in part.items())
        merge.when_confirmed(position, confirmed)
        await merged

    def _allowed(self, peer: Peer, command: Command) -> CommitKey:
        key = _key(command)
        group, topic, _index = key
        self._authorizer.authorize(peer, command, CONSUME, of_group(group))
        self._authorizer.authorize(peer, command, CONSUME, of_topic(topic))
        return key


def _key(command: Command) -> CommitKey:
    fields = command.fields
    return text(fields, "consumerGroup"), text(fields, "topic"), number(fields, "queueId")
