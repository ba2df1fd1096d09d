"""The users and rules of a whole cluster: what brokers and controllers tell each other about them.

    AGREED_USERS (9074)   version known -> the version in force, with the table if it is another one
    CHANGE_USERS (9075)   a change made for one version -> the version after it

Controllers hold the table; each master keeps a copy in the log of its group. A change names the version that it was
made for and is refused (ACCESS_TABLE_CHANGED) if there is a newer one, so that two brokers never overwrite each other.
`origin` is a random text of the first change: controllers that lost their disks begin a table with another origin,
which no revision of the former one can be mistaken for.

Invariant: a table without an origin is empty, and only such a table takes a change made for any version. Secrets are in
these bodies and in no text of this module. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from remoting.access.users import Entry, User, UserTable

EXACT_FIELD = "exact"
"""Field of AGREED_USERS: `true` where the answer must have every change that was answered before."""
USERS_MAX = 100_000
"""Users that controllers hold; a change beyond that is refused. Brokers have a limit of their own, which is lower."""


class Version(msgspec.Struct, frozen=True):
    """Which table: where it began, and the number of its changes. Without an origin there is none yet."""

    origin: str = ""
    revision: int = 0


class UserState(msgspec.Struct, frozen=True, kw_only=True):
    """One user with its rules as they are after a change; deleted where `user` is None."""

    name: str
    user: User | None = None
    entries: tuple[Entry, ...] = ()


class UserChange(msgspec.Struct, frozen=True, kw_only=True):
    """Body of CHANGE_USERS. `origin`: that of the table it was made for, or a new one where it begins a table."""

    made_for: Version
    origin: str
    states: tuple[UserState, ...]

    @property
    def version_after(self) -> Version:
        """The version that the change makes."""
        return Version(self.origin, self.made_for.revision + 1)


class AgreedUsers(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to both; without `table` to CHANGE_USERS, and where the version is the one in the request."""

    version: Version = Version()
    table: UserTable | None = None


class AgreedTable(msgspec.Struct, frozen=True):
    """The users that the controllers agreed on; replaced by each change."""

    version: Version = Version()
    users: dict[str, User] = {}
    entries: dict[str, tuple[Entry, ...]] = {}

    def takes(self, change: UserChange) -> bool:
        """Whether the change was made for this table."""
        if not self.version.origin:
            return True
        return self.version == change.made_for and self.version.origin == change.origin

    def after(self, change: UserChange) -> AgreedTable:
        """Return the table with the change, names in order."""
        assert self.takes(change), (self.version, change.made_for)
        table = with_states(UserTable(self.users, self.entries), change.states)
        users, entries = dict(sorted(table.users.items())), dict(sorted(table.entries.items()))
        return AgreedTable(change.version_after, users, entries)


def with_states(table: UserTable, states: Iterable[UserState]) -> UserTable:
    """Return the table with these users in place of those with the same names."""
    users, entries = dict(table.users), dict(table.entries)
    for state in states:
        users.pop(state.name, None)
        entries.pop(state.name, None)
        if state.user is not None:
            users[state.name] = state.user
            if state.entries:
                entries[state.name] = state.entries
    return UserTable(users, entries)


def differences(before: UserTable, after: UserTable) -> list[UserState]:
    """Return the states that make the one table the other."""
    return [
        UserState(name=name, user=after.users.get(name), entries=after.entries.get(name, ()))
        for name in sorted(before.users.keys() | after.users.keys())
        if _of(before, name) != _of(after, name)
    ]


def _of(table: UserTable, name: str) -> tuple[User | None, tuple[Entry, ...]]:
    entries: Mapping[str, tuple[Entry, ...]] = table.entries
    return table.users.get(name), tuple(entries.get(name, ()))
