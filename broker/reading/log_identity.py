"""Which log this is: a random number in its state, the same at every broker of the group and for as long as it lives.

Queue offsets and queue ids say where a reader is only within one log: another data directory counts from 0 again. The
number is written by the first master that finds none, so a log of an earlier release gets one too; replicas get it with
the log, and retention carries it forward as all state.

Invariant: a log has at most one identity, which never changes; before it is written there is none, and readers do not
compare. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.store.state import state_kinds
from broker.store.state.state_kinds import StateChange

if TYPE_CHECKING:
    from broker.store.log_store import LogStore

IDENTITY_BYTES = 16


class LogIdentity:
    """The identity of one store's log."""

    def __init__(self, store: LogStore, random_bytes: Callable[[int], bytes]) -> None:
        """`random_bytes`: so many of them."""
        self._store = store
        self._random_bytes = random_bytes

    def ensure(self) -> None:
        """Write one where there is none. Raises StoreError: there is none still."""
        if not self.known()[0]:
            value = self._random_bytes(IDENTITY_BYTES)
            self._store.append_state([StateChange(state_kinds.LOG_IDENTITY, b"", value)])

    def known(self) -> tuple[str, int]:
        """(the identity in hexadecimal digits, log position that an answer showing it waits for); ("", 0) for none."""
        found = self._store.state.get(state_kinds.LOG_IDENTITY, b"")
        return ("", 0) if found is None else (found[0].hex(), found[1] + 1)
