"""Which messages a replica gave by POP while it stands in, and from where on it gives each group the next ones.

    journal (GIVEN, POPS) -> links of each queue -> the front behind them, joined on to the group's offset in the log

Of a queue messages are given either without order or in order, which is kept with the attempt. In order `ordered` says
when, and gives them again.

A replica does not move a group's offset. The next message of a group is behind the links that join on to that offset
(`broker.pop.chain`, as the next master will walk them), so a line that was lost is given again. Messages behind the
front that did not match are remembered in memory alone, until the next one that matches.

Invariant: what is given is kept with the front before it. There is room in the journal for what is given and for what
becomes of it. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from broker.acting.journal import ActingJournal, Done, Entry
from broker.acting.kinds import GIVEN, POPS
from broker.pop.chain import Link, follow
from broker.pop.check_points import Owned
from remoting.protocol.errors import Refused

QueueKey = tuple[str, str, int]
"""(group, topic, queue index)."""
PopKey = tuple[str, str, int, int]
"""(group, topic, queue index, offset)."""
QUEUES_MAX = 200_000
"""Queues and groups that are known at a time, with nothing given of most of them; then the journal is read anew."""
NOT_READ = -1


@dataclass(slots=True)
class _Queue:
    """What is known of one queue and group."""

    links: dict[int, int] = field(default_factory=dict)
    """Offset of a message that was given -> where looking for it began."""
    open: set[int] = field(default_factory=set)
    """Offsets of those that are not done."""
    done: int = 0
    """Messages of the queue, given here or in the log, that are done."""
    base: int = NOT_READ
    """The group's offset in the log."""
    front: int = 0
    """The offset behind the links that join on to it."""
    passed: int = 0
    """From there on messages were not looked at yet."""
    attempt: str | None = None
    """The last one that was given messages in order; None where they are given without order."""

    def take(self, offset: int, start: int, attempt: str | None) -> None:
        """A message was given."""
        self.links[offset], self.attempt = start, attempt
        self.open.add(offset)


class GivenMessages:
    """The messages that one replica gave, and what became of these and of the master's."""

    def __init__(self, journal: ActingJournal) -> None:
        self.released: Callable[[str, str], None] = lambda _group, _topic: None
        """Called with group and topic when messages are done: there may be room for others."""
        self.moved: Callable[[PopKey, int], None] = lambda _key, _end_ms: None
        """Called with the end of each new ownership."""
        self._journal = journal
        self._queues: dict[QueueKey, _Queue] = {}
        self._open = 0
        """Messages given here of which nothing became yet."""
        self._read_at = NOT_READ

    @property
    def room(self) -> int:
        """How many messages more can be given: each may need a second entry."""
        self._read()
        return max(0, self._journal.room - self._open) // 2

    def owned(self, key: PopKey) -> Owned | None:
        """The ownership that a message was given under here; None for one that was not."""
        found = self._journal.get(GIVEN, key)
        return None if found is None else (found[1], found[2])

    def taken(self, queue: QueueKey) -> int:
        """How many messages of a queue the group has beside those in the log; negative where more of these are done."""
        self._read()
        known = self._queues.get(queue)
        return 0 if known is None else len(known.links) - known.done

    def next_of(self, queue: QueueKey, base: int) -> tuple[int, int]:
        """The front of a queue, where the log's offset of the group is `base`, and up to where all behind it was looked
        at and did not match."""
        known = self._known(queue)
        if known.base != base:
            known.base, (known.front, _joined) = base, follow(base, sorted(known.links.items()))
            known.passed = known.front
        return known.front, known.passed

    def is_ordered(self, queue: QueueKey) -> bool | None:
        """Whether messages of a queue were given in order; None where none were given."""
        known = self._known(queue)
        return known.attempt is not None if known.links else None

    def open(self, queue: QueueKey) -> Collection[int]:
        """Offsets of the messages of a queue that were given and are not done."""
        return self._known(queue).open

    def attempt(self, queue: QueueKey) -> str | None:
        """Which attempt was given messages of a queue in order, as far as this process knows."""
        return self._known(queue).attempt

    def repeated(self, queue: QueueKey, attempt: str) -> None:
        """Messages in order are given again to this attempt."""
        self._known(queue).attempt = attempt

    def links(self, queue: QueueKey) -> Mapping[int, int]:
        """Where looking for each message began that was given of a queue."""
        return self._known(queue).links

    def begun(self, group: str, topic: str, queue_count: int) -> bool:
        """Whether a group was given messages of a topic here."""
        self._read()
        known = (self._queues.get((group, topic, index)) for index in range(queue_count))
        return any(each is not None and each.links for each in known)

    def give(
        self,
        queue: QueueKey,
        links: Sequence[Link],
        owned: Owned,
        *,
        front: int,
        passed: int,
        attempt: str | None = None,
    ) -> list[Entry]:
        """The entries of messages that are given, which must be kept; the front behind them, and what was looked at.

        `attempt`: in order, to which one.
        """
        known = self._known(queue)
        known.front, known.passed = front, max(front, passed)
        for offset, start in links:
            self._open += offset not in known.links
            known.take(offset, start, attempt)
        return [(GIVEN, (*queue, offset), (start, *owned, attempt)) for offset, start in links]

    def keep(self, entries: Sequence[Entry], done: Done) -> None:
        """Write what was given, for the first time or again; `done` is called when all of it is on the disk, or with
        why it is not."""
        for kind, (group, topic, index, offset), _value in entries:
            if kind is POPS:
                self.became((group, topic, index, offset), is_done=False)

        def settled(refused: Refused | None) -> None:
            if refused is not None:
                self.forget()
            done(refused)

        self._journal.add_all(entries, settled)

    def forget(self) -> None:
        """Something was not kept: what the journal has counts."""
        self._read_at = NOT_READ

    def became(self, key: PopKey, *, is_done: bool) -> None:
        """Something is about to be kept of what became of a message that a group had."""
        known, kept = self._known(key[:3]), self._journal.get(POPS, key)
        self._open -= kept is None and key[3] in known.links
        if is_done:
            known.done += 1
            known.open.discard(key[3])

    def _known(self, queue: QueueKey) -> _Queue:
        if len(self._queues) >= QUEUES_MAX:
            self.forget()
        self._read()
        return self._queues.setdefault(queue, _Queue())

    def _read(self) -> None:
        """Take what the journal has, where that has changed without this object."""
        if self._read_at == self._journal.parts_taken:
            return
        self._read_at, self._queues, self._open = self._journal.parts_taken, {}, 0
        became, given = self._journal.of(POPS), self._journal.of(GIVEN)
        for (group, topic, index, offset), (start, *_owned, attempt) in given.items():
            self._queues.setdefault((group, topic, index), _Queue()).take(offset, start, attempt)
            self._open += (group, topic, index, offset) not in became
        for key, (since, length, pop_ms, _invisible_ms) in became.items():
            group, topic, index, offset = key
            if pop_ms or (key in given and given[key][1:3] != (since, length)):
                continue  # it is in flight, or was given anew since
            known = self._queues.setdefault((group, topic, index), _Queue())
            known.done += 1
            known.open.discard(offset)
