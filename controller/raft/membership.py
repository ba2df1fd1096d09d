"""Who the members of a group are: voters and learners, and which change may follow which.

    entry    CONFIGURATION | msgpack [[voters], [learners], [[id, host, port, raft port, identity]], group, [retired]]

Members change one voter at a time, so that the majorities before and after a change always share a member; a change
counts from the moment its entry is in the log, committed or not, and goes with the entry when that is cut. Learners get
everything and decide nothing. Invariant: at most one change is not committed. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from controller.raft.messages import CONFIGURATION, Entry
from remoting.protocol.errors import LocalMisuse, RemoteViolation


class MemberPlace(msgspec.Struct, array_like=True, frozen=True):
    """Where a member is, and the identity of its directory, empty while it is not known; for callers of the core."""

    node_id: str
    host: str
    port: int
    raft_port: int
    identity: str = ""


class Membership(msgspec.Struct, array_like=True, frozen=True):
    """One set of members, by node id. The core passes on what follows the learners and reads none of it."""

    voters: tuple[str, ...]
    learners: tuple[str, ...] = ()
    places: tuple[MemberPlace, ...] = ()
    group: str = ""
    """Which group of controllers this is."""
    retired: tuple[str, ...] = ()
    """Identities of directories that must not come back, the latest last."""

    @property
    def members(self) -> tuple[str, ...]:
        """Voters and learners."""
        return self.voters + self.learners

    @property
    def majority(self) -> int:
        """Voters that decide."""
        return len(self.voters) // 2 + 1

    def command(self) -> bytes:
        """The entry's command that makes these the members."""
        return CONFIGURATION + msgspec.msgpack.encode(self)

    def check_next(self, other: Membership) -> None:
        """Refuse a change that is no single step from here. Raises LocalMisuse."""
        if not other.voters:
            raise LocalMisuse("a group needs at least one voter")
        if len(set(other.members)) != len(other.members):
            raise LocalMisuse("a member is named twice, or is both voter and learner")
        changed = set(self.voters) ^ set(other.voters)
        if len(changed) > 1:
            raise LocalMisuse(f"voters change one at a time, not {', '.join(sorted(changed))} at once")
        strangers = set(other.voters) - set(self.members)
        if strangers:
            raise LocalMisuse(f"{strangers.pop()} has to be a learner first, so that it has the log before it votes")


_decoder = msgspec.msgpack.Decoder(Membership)


def decode_members(command: bytes) -> Membership:
    """The members that an entry's command names. Raises RemoteViolation."""
    try:
        return _decoder.decode(command[1:])
    except msgspec.MsgspecError as error:
        raise RemoteViolation(f"an entry names no members: {error}") from error


class MemberHistory:
    """The members by the entries of one log, the newest last."""

    def __init__(self, index: int, first: Membership) -> None:
        self._known = [(index, first)]

    @property
    def current(self) -> Membership:
        """Those that count now."""
        return self._known[-1][1]

    @property
    def index(self) -> int:
        """The entry that made them."""
        return self._known[-1][0]

    def at(self, index: int) -> Membership:
        """Those that counted when this entry was the last."""
        return next(members for since, members in reversed(self._known) if since <= index)

    def check(self, entries: Iterable[Entry]) -> None:
        """Refuse entries before the log has them: raises RemoteViolation when one should name members and does not."""
        for command, _, _ in entries:
            if command[:1] == CONFIGURATION:
                decode_members(command)

    def appended(self, entry: Entry) -> None:
        """Take in an entry of the log; most change nothing."""
        command, index, _ = entry
        if command[:1] == CONFIGURATION:
            self._known.append((index, decode_members(command)))

    def cut(self, index: int) -> None:
        """The log ends before this entry now: the members before it count again."""
        while len(self._known) > 1 and self._known[-1][0] >= index:
            self._known.pop()

    def forget(self, index: int) -> None:
        """Nothing before this entry will be asked for."""
        while len(self._known) > 1 and self._known[1][0] <= index:
            del self._known[0]

    def replace(self, index: int, members: Membership) -> None:
        """A snapshot took the place of the log."""
        self._known = [(index, members)]
