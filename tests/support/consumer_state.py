"""The account of what stands on the log: what groups were given and have acknowledged, timers, transactions, wills.

A message is known by its name, which its producer chose. Its `Fate` is what must be visible of it in the end, by what
its producer was answered so far; a group's account of it is what its consumers were given and have acknowledged.
Everything that simulations and chaos learn goes in here, and whatever contradicts it comes out as a `Broken` rule:

nothing forbidden    what was refused for good, rolled back, left open, recalled or cancelled is never visible
not before its time  no timer is delivered early
once                 a message that was sent once is in its topic once: timers, transactions and wills too
nobody's loss        every message of a group's topics that must be visible was acknowledged by the group or lies in its
                     dead letters, after its consumers have taken and acknowledged all there is
done is done         what a group has acknowledged, and was told so, it is never given again
in order             a queue that is consumed in order is given without gaps
not stale            a reader of a retained message gets the last one that was acknowledged before it asked, or a later

Invariant: pure; times come from the caller, an unknown outcome is never taken for the one or the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

BROKEN_MAX = 20
"""Broken rules that are kept; a first one is followed by many."""


class Fate(Enum):
    """What must be visible of a message in the end."""

    MAY = "may be visible"
    MUST = "must be visible"
    NEVER = "must never be visible"


class Broken(NamedTuple):
    """A rule that does not hold."""

    rule: str
    detail: str


@dataclass(slots=True)
class Entry:
    """One message."""

    name: str
    topic: str
    fate: Fate
    not_before_ms: int = 0
    position: int = -1
    """Of its record in the log; -1: not known, or it is not the one that groups read."""
    is_seen: bool = False
    """Whether anybody has found it in its topic."""


@dataclass(slots=True)
class GroupAccount:
    """What one group was given of its topics."""

    topics: frozenset[str]
    is_exact: bool
    """Whether an acknowledgement is answered, so that what was acknowledged is never given again."""
    given: dict[str, int] = field(default_factory=dict)
    done: dict[str, int] = field(default_factory=dict)
    """Acknowledged, and told so: name -> the moment of that."""
    perhaps: Counter[str] = field(default_factory=Counter)
    """Acknowledged without an answer: name -> so many times, by one or by several consumers."""
    buried: set[str] = field(default_factory=set)
    """Found in its dead letters."""
    next_offsets: dict[str, int] = field(default_factory=dict)
    """Where queues that are consumed in order continue, at most."""


@dataclass(slots=True)
class RetainedAccount:
    """The values of one retained topic, in the order in which its only writer wrote them; None clears it."""

    asked: list[str | None] = field(default_factory=list)
    acknowledged: int = 0
    """How many of them are certain to be replaced by none before."""


class ConsumerState:
    """The account; `broken` is empty as long as every rule holds."""

    def __init__(self, *, early_ms: int = 0) -> None:
        """`early_ms`: how much earlier than asked a timer may come, where clocks differ."""
        self.broken: list[Broken] = []
        self._moment = 0
        self.entries: dict[str, Entry] = {}
        self.groups: dict[str, GroupAccount] = {}
        self.retained_reads = 0
        """How often a reader got a value, or none."""
        self._retained: dict[str, RetainedAccount] = {}
        self._early_ms = early_ms

    def _break(self, rule: str, detail: str) -> None:
        if len(self.broken) < BROKEN_MAX:
            self.broken.append(Broken(rule, detail))

    # -- producers ----------------------------------------------------------------------------------------------------

    def expect(self, name: str, topic: str, fate: Fate = Fate.MAY, not_before_ms: int = 0) -> None:
        """A message is about to be sent, or to be left as a will or half message; nothing is known of it yet."""
        assert name not in self.entries, name
        self.entries[name] = Entry(name, topic, fate, not_before_ms)

    def settle(self, name: str, fate: Fate, position: int = -1) -> None:
        """An answer, or the next question, decides what must become of it."""
        entry = self.entries[name]
        entry.fate = fate
        if position >= 0:
            entry.position = position
        if fate is Fate.NEVER and entry.is_seen:
            self._break("nothing forbidden", f"{name} of {entry.topic} was visible before it was called off")

    # -- consumers ----------------------------------------------------------------------------------------------------

    def join(self, group: str, topics: Iterable[str], *, is_exact: bool = True) -> None:
        """A group consumes topics from their beginning."""
        self.groups[group] = GroupAccount(frozenset(topics), is_exact)

    def seen(self, name: str, now_ms: int, where: str) -> None:
        """Somebody has the message."""
        entry = self.entries.get(name)
        if entry is None:
            self._break("nothing forbidden", f"{name} at {where} was never sent")
            return
        entry.is_seen = True
        if entry.fate is Fate.NEVER:
            self._break("nothing forbidden", f"{name} of {entry.topic} is visible at {where}")
        if now_ms + self._early_ms < entry.not_before_ms:
            self._break("not before its time", f"{name} is at {where}, {entry.not_before_ms - now_ms} ms early")

    def asks(self) -> int:
        """A consumer is about to ask for messages; returns that moment, for `given`."""
        return self._moment

    def given(self, group: str, name: str, now_ms: int, asked: int | None = None) -> None:
        """A consumer of the group has got the message that it asked for at that moment; None: just now.

        The answer may have been long on its way: meanwhile somebody else may have got the message and acknowledged it.
        """
        account = self.groups[group]
        self.seen(name, now_ms, f"group {group}")
        account.given[name] = account.given.get(name, 0) + 1
        if account.is_exact and account.done.get(name, self._moment + 1) <= (self._moment if asked is None else asked):
            self._break("done is done", f"{group} is given {name} again")

    def in_order(self, group: str, queue: str, offset: int, name: str) -> None:
        """The message at an offset of a queue was given, of one that the group consumes in order."""
        account = self.groups[group]
        expected = account.next_offsets.get(queue, 0)
        if offset > expected:
            self._break("in order", f"{group} is given {name}, offset {offset} of {queue}, before offset {expected}")
        account.next_offsets[queue] = max(expected, offset + 1)

    def acknowledging(self, group: str, name: str) -> None:
        """A consumer acknowledges the message, and does not know yet whether that counts."""
        self.groups[group].perhaps[name] += 1

    def acknowledged(self, group: str, name: str) -> None:
        """It was told that it does."""
        self._moment += 1
        self.groups[group].done.setdefault(name, self._moment)

    def not_acknowledged(self, group: str, name: str) -> None:
        """It was told that it does not: the message is not the consumer's any more."""
        perhaps = self.groups[group].perhaps
        perhaps[name] -= 1
        if perhaps[name] <= 0:  # no other consumer waits to be told
            del perhaps[name]

    def buried(self, group: str, name: str, now_ms: int) -> None:
        """The message lies in the group's dead letters."""
        self.seen(name, now_ms, f"dead letters of {group}")
        account = self.groups[group]
        account.buried.add(name)
        if account.is_exact and name in account.done:
            self._break("done is done", f"{name} is among the dead letters of {group}, which had acknowledged it")

    # -- retained messages --------------------------------------------------------------------------------------------

    def retaining(self, topic: str, value: str | None) -> int:
        """The only writer of a topic sends another value, None to clear it; returns its number."""
        account = self._retained.setdefault(topic, RetainedAccount())
        account.asked.append(value)
        return len(account.asked)

    def retained(self, topic: str, number: int) -> None:
        """The value of that number was acknowledged."""
        account = self._retained[topic]
        account.acknowledged = max(account.acknowledged, number)

    def retained_floor(self, topic: str) -> int:
        """What a reader that asks now must name afterwards: the number of the value that it may get at least."""
        account = self._retained.get(topic)
        return 0 if account is None else account.acknowledged

    def retained_asked(self, topic: str) -> int:
        """How many values were sent so far."""
        account = self._retained.get(topic)
        return 0 if account is None else len(account.asked)

    def read_retained(self, topic: str, value: str | None, floor: int) -> None:
        """A reader got a value, or None for none; `floor`: see `retained_floor`, taken before it asked."""
        self.retained_reads += 1
        account = self._retained.setdefault(topic, RetainedAccount())
        possible = [*account.asked[max(floor - 1, 0) :], *(() if floor else (None,))]
        if value not in possible:
            self._break("not stale", f"{topic} has {value}, possible are {possible[:6]}")

    # -- the end ------------------------------------------------------------------------------------------------------

    def owed(self, begin: int = 0) -> list[Broken]:
        """What is still due to somebody; `begin`: where the log begins, what lies below is gone by retention."""
        found = []
        for entry in self.entries.values():
            if entry.fate is not Fate.MUST or 0 <= entry.position < begin:
                continue
            takers = [(name, one) for name, one in self.groups.items() if entry.topic in one.topics]
            if not takers and not entry.is_seen:
                found.append(Broken("nobody's loss", f"{entry.name} of {entry.topic} was never delivered"))
            for group, account in takers:
                if not any(entry.name in each for each in (account.done, account.perhaps, account.buried)):
                    times = account.given.get(entry.name, 0)
                    detail = f"{entry.name} of {entry.topic} was given to {group} {times} times and never again"
                    found.append(Broken("nobody's loss", detail))
        return found

    def account(self, begin: int = 0) -> None:
        """Everybody had time enough: what is owed now is lost."""
        for rule, detail in self.owed(begin):
            self._break(rule, detail)

    def in_topic(self, topic: str, names: Iterable[str], now_ms: int) -> None:
        """All messages that a topic has in the end."""
        there: set[str] = set()
        for name in names:
            self.seen(name, now_ms, f"topic {topic}")
            if name in there:
                self._break("once", f"{name} is in {topic} twice")
            there.add(name)
