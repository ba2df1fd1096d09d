"""Changes of several deliveries of one turn, seen by those that follow and written together as one record.

    held   (kind, key) -> the change that was computed last
    grown  owner (group and queue, as in the keys of check-points) -> how many check-points more that makes

Invariant: what is held is written or dropped before the callback of the loop that began ends, so nothing else of the
broker comes between. Holding deliveries only adds check-points to a block, so the last value of each key stands for
all of them. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from broker.store.state.check_point_table import CHECK_POINT_BYTES, KEY_TAIL
from broker.store.state.state_kinds import CHECK_POINT, StateChange

if TYPE_CHECKING:
    from broker.store.log_store import LogStore


class HeldChanges:
    """State with the changes that are held."""

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self._held: dict[tuple[int, bytes], StateChange] = {}
        self._grown: dict[bytes, int] = {}
        self._undo: list[Callable[[], None]] = []

    def value(self, kind: int, key: bytes) -> bytes | None:
        """What a key has now."""
        if self._held:
            held = self._held.get((kind, key))
            if held is not None:
                return held.value
        found = self._store.state.get(kind, key)
        return None if found is None else found[0]

    def growth(self, owner: bytes) -> int:
        """How many check-points of an owner are held."""
        return self._grown.get(owner, 0) if self._grown else 0

    def keep(self, changes: Iterable[StateChange], undo: Callable[[], None] | None = None) -> None:
        """Let these hold from now on; `undo` is called when they are not written."""
        if undo is not None:
            self._undo.append(undo)
        for change in changes:
            if change.kind == CHECK_POINT:
                owner, before = change.key[: -KEY_TAIL.size], self.value(CHECK_POINT, change.key) or b""
                grown = (len(change.value or b"") - len(before)) // CHECK_POINT_BYTES
                self._grown[owner] = self._grown.get(owner, 0) + grown
            self._held[change.kind, change.key] = change

    def write(self) -> int:
        """Write what is held as one record; returns the position to be confirmed.

        Raises:
            StoreError: it is held as before.
        """
        position = self._store.append_state(list(self._held.values())) if self._held else 0
        self._undo.clear()
        self.drop()
        return position

    def drop(self) -> None:
        """Forget what is held."""
        for undo in self._undo:
            undo()
        self._undo.clear()
        self._held.clear()
        self._grown.clear()
