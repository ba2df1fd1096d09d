"""Users and their entries in the log.

```
ACCESS    key = `user/` + name    value = JSON of `User`, with its secret
          key = `acl/` + name     value = JSON list of `Entry`
          key = `version`         value = JSON of `Version`, where controllers hold the users of the whole cluster
```
A signature (HMAC-SHA1) is checked with the secret itself, so the secret cannot be stored as a hash: who can read the
data directory can read it, as with `access_keys` in a configuration file.

Invariant: an entry belongs to a user that exists; what changes together is one record. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec

from broker.store.state import state_kinds
from broker.store.state.state_kinds import StateChange
from remoting.access.agreement import UserState, Version, with_states
from remoting.access.users import Entry, User, UserTable

if TYPE_CHECKING:
    from broker.store.log_store import LogStore

USER, ACL, VERSION = b"user/", b"acl/", b"version"

_encode = msgspec.json.encode
_user = msgspec.json.Decoder(User).decode
_entries = msgspec.json.Decoder(tuple[Entry, ...]).decode
_version = msgspec.json.Decoder(Version).decode


class CreatedUsers:
    """All users made by requests."""

    def __init__(self, store: LogStore, in_force: Callable[[UserTable], None]) -> None:
        """`in_force` gets the table after each change."""
        self._store = store
        self._in_force = in_force
        self.version = Version()
        """The version of the cluster's table that this one is; without an origin while only this broker knows it."""
        users: dict[str, User] = {}
        entries: dict[str, tuple[Entry, ...]] = {}
        for raw, (value, _position) in list(store.state.items(state_kinds.ACCESS)):
            key = bytes(raw)
            if key.startswith(USER):
                users[key.removeprefix(USER).decode()] = _user(value)
            elif key.startswith(ACL):
                entries[key.removeprefix(ACL).decode()] = _entries(value)
            elif key == VERSION:
                self.version = _version(value)
        self.table = UserTable(users, entries)
        self.position = store.end_position
        """Log position to wait for until the present table is durable."""

    def write(self, states: Iterable[UserState], version: Version | None = None) -> int:
        """Put these users in place of those of the same names; returns the position to wait for. Raises StoreError."""
        found = list(states)
        after = with_states(self.table, found)
        changes = [change for state in found for change in self._changes(state)]
        if version is not None and version != self.version:
            changes.append(StateChange(state_kinds.ACCESS, VERSION, _encode(version)))
        if changes:
            self.position = self._store.append_state(changes)
        self.version = self.version if version is None else version
        self.table = after
        self._in_force(after)
        return self.position

    def _changes(self, state: UserState) -> Iterator[StateChange]:
        name, table = state.name, self.table
        entries = state.entries if state.user is not None else ()
        if state.user != table.users.get(name):
            value = None if state.user is None else _encode(state.user)
            yield StateChange(state_kinds.ACCESS, USER + name.encode(), value)
        if tuple(entries) != tuple(table.entries.get(name, ())):
            yield StateChange(state_kinds.ACCESS, ACL + name.encode(), _encode(entries) if entries else None)
