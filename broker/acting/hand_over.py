"""The way of the journal to the next master: by requests to another broker, or into this broker's own log.

As a replica this broker offers what it has whenever a master is known and it does not stand in itself; each attempt
asks anew where the master is. One that becomes the master itself merges everything into its own log.

Invariant: an entry is forgotten here only after a master has confirmed it. Loop thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from broker.acting.kinds import KINDS, EntryKind, Key, Value
from broker.requests import MERGED_MAX
from broker.store.errors import StoreError
from remoting import background
from remoting.protocol.errors import LightMQError
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import Dial
from remoting.transport.failures import checked

if TYPE_CHECKING:
    from broker.acting.journal import ActingJournal
    from broker.store.log_store import LogStore

RETRY_S = 0.5
"""Pause before entries that no master took are offered again."""
TIMEOUT_MS = 5_000

Give = Callable[[EntryKind, Mapping[Key, Value]], Awaitable[None]]


Merge = Callable[[bytes], int]
"""Takes over entries as a request brings them, at a master; returns the log position to wait for. Raises LightMQError,
StoreError."""


class HandOver:
    """Gives the entries of one journal to the next master."""

    def __init__(self, journal: ActingJournal, master: Callable[[], str], dial: Dial, log: Any) -> None:
        """`master`: its address for clients as known now, empty while there is none to give anything to."""
        self._journal, self._master, self._dial, self._log = journal, master, dial, log
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Offer what is there, and what comes, to whoever is the master."""
        self._begin(self._send)

    def merge_into(self, store: LogStore, merges: Mapping[int, Merge]) -> None:
        """This broker is the master now: its own log takes the entries over, by the requests' codes."""
        self._begin(partial(_merge, store, merges))

    def cancel(self) -> None:
        """Hand nothing over any more."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def stop(self) -> None:
        """End; what is left stays in the journal."""
        task = self._task
        self.cancel()
        if task is not None:
            await asyncio.gather(task, return_exceptions=True)

    def _begin(self, give: Give) -> None:
        self.cancel()
        self._task = background.task(self._run(give), "hands over what was taken in a master's place")

    async def _run(self, give: Give) -> None:
        while True:
            if not len(self._journal):
                self._journal.added.clear()
                await self._journal.added.wait()
            await self._give_all(give)

    async def _give_all(self, give: Give) -> None:
        total, said = 0, ""
        while len(self._journal):
            kind = next(kind for kind in KINDS.values() if self._journal.of(kind))
            part = dict(islice(self._journal.of(kind).items(), MERGED_MAX))
            try:
                await give(kind, part)
                await self._journal.handed_over(kind, part)
            except (LightMQError, StoreError, OSError) as error:
                if str(error) != said:
                    said = str(error)
                    self._log.info("acting_entries_not_taken", kind=kind.name, error=said)
                await asyncio.sleep(RETRY_S)
            else:
                total += len(part)
        self._log.info("acting_entries_handed_over", entries=total)

    async def _send(self, kind: EntryKind, part: Mapping[Key, Value]) -> None:
        address = self._master()
        if not address:
            raise ConnectionError("no other broker is the master")
        connection = await self._dial(address)
        try:
            checked(await connection.request(Command(kind.code, body=kind.encode(part)), TIMEOUT_MS))
        finally:
            await connection.close()


async def _merge(store: LogStore, merges: Mapping[int, Merge], kind: EntryKind, part: Mapping[Key, Value]) -> None:
    merged: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def confirmed(error: Exception | None) -> None:
        if not merged.done():
            merged.set_result(None) if error is None else merged.set_exception(error)

    store.when_confirmed(merges[kind.code](kind.encode(part)), confirmed)
    await merged
