"""The entries of one member's log in memory, as the core sees them; the journal on disk follows it.

Invariants: indexes are consecutive, terms never fall; there is always an entry, the one in front standing for all that
a snapshot holds; nothing committed is ever cut. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from controller.raft.messages import Entry


class RaftLog:
    """Entries first..last, how far they are durable here, and how far they are committed."""

    def __init__(self, entries: Iterable[Entry], committed: int) -> None:
        self._entries = list(entries)
        assert self._entries, "a log has at least the entry in front"
        self.stable = self.last_index
        """Last entry that is durable here."""
        self.committed = committed
        self.cut_from = 0
        """First entry that was cut since `unstable` was last taken; 0: none."""

    @property
    def first_index(self) -> int:
        """Of the entry in front."""
        return self._entries[0][1]

    @property
    def last_index(self) -> int:
        """Of the last entry."""
        return self._entries[-1][1]

    @property
    def place(self) -> tuple[int, int]:
        """(term, index) of the last entry: the greater one is the more complete log."""
        _, index, term = self._entries[-1]
        return term, index

    def __len__(self) -> int:
        return len(self._entries)

    def term(self, index: int) -> int | None:
        """Of an entry; None when it is not here."""
        place = index - self.first_index
        return self._entries[place][2] if 0 <= place < len(self._entries) else None

    def entries(self, start: int, end: int, bytes_max: int) -> list[Entry]:
        """Entries start..end-1, at most so many bytes of commands but at least one."""
        part = self._entries[start - self.first_index : end - self.first_index]
        size = 0
        for number, (command, _, _) in enumerate(part):
            size += len(command)
            if number and size > bytes_max:
                return part[:number]
        return part

    def append(self, command: bytes, term: int) -> Entry:
        """Add an entry at the end, and return it."""
        entry = (command, self.last_index + 1, term)
        self._entries.append(entry)
        return entry

    def follow(self, entries: list[Entry]) -> list[Entry]:
        """Take a leader's entries, which follow one that is here; those that were new.

        What contradicts them is cut. Raises AssertionError for a cut of what is committed: the caller checked.
        """
        for number, (_, index, term) in enumerate(entries):
            if self.term(index) not in (None, term):
                self.cut(index)
            if index > self.last_index:
                self._entries += entries[number:]
                return entries[number:]
        return []

    def conflict(self, entries: list[Entry]) -> int:
        """Index of the first of these entries that contradicts one here; 0: none."""
        return next((index for _, index, term in entries if self.term(index) not in (None, term)), 0)

    def cut(self, index: int) -> None:
        """Remove the entries from this one on."""
        assert index > self.committed, (index, self.committed)
        del self._entries[index - self.first_index :]
        self.stable = min(self.stable, index - 1)
        self.cut_from = min(self.cut_from or index, index)

    def first_of_term(self, index: int) -> int:
        """The first entry here that has the term of this one."""
        term = self.term(index)
        while index > self.first_index and self.term(index - 1) == term:
            index -= 1
        return index

    def last_up_to_term(self, term: int) -> int:
        """The last entry here of this term; 0 when there is none."""
        for _, index, of_term in reversed(self._entries):
            if of_term <= term:
                return index if of_term == term else 0
        return 0

    def persisted(self, index: int, term: int) -> None:
        """Everything up to this entry is durable, if it is still the same one."""
        if self.term(index) == term:
            self.stable = max(self.stable, index)

    def forget(self, index: int) -> None:
        """A snapshot holds everything before this entry, which becomes the one in front."""
        place = index - self.first_index
        if 0 < place < len(self._entries):
            del self._entries[:place]
        self.stable = max(self.stable, index)

    def replace(self, front: Entry) -> None:
        """A snapshot took the place of everything."""
        self._entries = [front]
        self.committed = self.stable = front[1]
        self.cut_from = 0
