"""Users and their entries in the log.

```
ACCESS    key = `user/` + name    value = JSON of `User`, with its secret
          key = `acl/` + name     value = JSON list of `Entry`
```
A signature (HMAC-SHA1) is checked with the secret itself, so the secret cannot be stored as a hash: who can read the
data directory can read it, as with `access_keys` in a configuration file.

Invariant: an entry belongs to a user that exists; both change as one record. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec

from broker.store.state import state_kinds
from broker.store.state.state_kinds import StateChange
from remoting.access.users import Entry, User, UserTable

if TYPE_CHECKING:
    from broker.store.log_store import LogStore

T = TypeVar("T")

USER, ACL = b"user/", b"acl/"

_encode = msgspec.json.encode
_user = msgspec.json.Decoder(User).decode
_entries = msgspec.json.Decoder(tuple[Entry, ...]).decode


class CreatedUsers:
    """All users made by requests."""

    def __init__(self, store: LogStore, in_force: Callable[[UserTable], None]) -> None:
        """`in_force` gets the table after each change."""
        self._store = store
        self._in_force = in_force
        users: dict[str, User] = {}
        entries: dict[str, tuple[Entry, ...]] = {}
        for raw, (value, _position) in list(store.state.items(state_kinds.ACCESS)):
            key = bytes(raw)
            if key.startswith(USER):
                users[key.removeprefix(USER).decode()] = _user(value)
            else:
                entries[key.removeprefix(ACL).decode()] = _entries(value)
        self.table = UserTable(users, entries)

    def put(self, name: str, user: User) -> int:
        """Create or replace a user; returns the log position to wait for. Raises StoreError."""
        position = self._write(USER + name.encode(), _encode(user))
        self._use({**self.table.users, name: user}, self.table.entries)
        return position

    def delete(self, name: str) -> int:
        """Remove a user with all of its entries; returns the position to wait for. Raises StoreError."""
        changes = [StateChange(state_kinds.ACCESS, kind + name.encode(), None) for kind in (USER, ACL)]
        position = self._store.append_state(changes)
        self._use(_without(self.table.users, name), _without(self.table.entries, name))
        return position

    def set_entries(self, name: str, entries: Sequence[Entry]) -> int:
        """Replace the entries of a user; returns the position to wait for. Raises StoreError."""
        position = self._write(ACL + name.encode(), _encode(list(entries)) if entries else None)
        others = _without(self.table.entries, name)
        self._use(self.table.users, {**others, name: tuple(entries)} if entries else others)
        return position

    def _write(self, key: bytes, value: bytes | None) -> int:
        return self._store.append_state([StateChange(state_kinds.ACCESS, key, value)])

    def _use(self, users: Mapping[str, User], entries: Mapping[str, tuple[Entry, ...]]) -> None:
        self.table = UserTable(users, entries)
        self._in_force(self.table)


def _without(table: Mapping[str, T], name: str) -> dict[str, T]:
    return {key: value for key, value in table.items() if key != name}
