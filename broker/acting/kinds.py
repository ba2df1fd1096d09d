"""What the journal of an acting replica keeps for a master, as data: one row of `KINDS` for each sort of entry.

An entry has a key and a value; of two values under one key `keep` chooses the one that counts. The entries go to a
master as a JSON list of items, each key and value in one, in a request of the kind's own, which the feature that it
belongs to carries out (`item` is what it reads).

Invariant: `keep` chooses the same one however often and, but for the outcomes of transactions, in whichever order it is
asked; of two outcomes the first counts. Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from broker.delayed import merging as escapes
from broker.groups import locks
from broker.groups import merging as offsets
from broker.pop import merging as pops
from broker.transactions import merging as transactions
from remoting.protocol.frames.codes import RequestCode as Code

Key = tuple[Any, ...]
Value = tuple[Any, ...]


@dataclass(frozen=True, slots=True, eq=False)
class EntryKind:
    """One sort of entry."""

    name: str
    """How its lines begin."""
    code: int
    """The request that brings entries to a master."""
    item: Any
    """Type of an item: the key's parts and the value's."""
    key_length: int
    keep: Callable[[Value, Value], Value]
    """The value that counts, of an earlier and a later one."""

    def split(self, item: tuple[Any, ...]) -> tuple[Key, Value]:
        """Key and value of an item."""
        return item[: self.key_length], item[self.key_length :]

    def encode(self, entries: Mapping[Key, Value]) -> bytes:
        """The body of the request with these."""
        return msgspec.json.encode([(*key, *value) for key, value in entries.items()])


OFFSETS = EntryKind("offset", Code.MERGE_OFFSETS, offsets.Item, 3, max)
"""(group, topic, queue index) -> (offset,): the largest counts."""
TRANSACTIONS = EntryKind("transaction", Code.MERGE_TRANSACTIONS, transactions.Item, 1, lambda earlier, _later: earlier)
"""(offset of the half message,) -> (log position, producer group, outcome): the first counts."""
LOCKS = EntryKind("lock", Code.MERGE_LOCKS, locks.Item, 3, lambda one, other: max(one, other, key=_of_lock))
"""(group, topic, queue index) -> (token, client id): the larger token counts, and of one token that it was given up."""


ESCAPES = EntryKind("escape", Code.MERGE_ESCAPED, escapes.Item, 2, lambda earlier, _later: earlier)
"""(start of the bucket, offset) -> (due time, log position) of a delayed message that another group has."""


POPS = EntryKind("pop", Code.MERGE_POPS, pops.Item, 4, lambda one, other: max(one, other, key=_of_pop))
"""(group, topic, queue index, offset) -> (pop time, invisible time in the log, pop time, invisible time now), the last
two 0 for a message that is done: the newest state of the log counts, and of that first that it is done, then the later
ownership."""


GIVEN = EntryKind("given", Code.MERGE_GIVEN, pops.GivenItem, 4, lambda one, other: max(one, other, key=_of_given))
"""(group, topic, queue index, offset) -> (start, pop time, invisible time, attempt) of a message that was given, and
where looking for it began; without order there is no attempt: the later ownership counts. These come before what became
of them."""


def _of_given(value: Value) -> tuple[Any, ...]:
    start, pop_ms, invisible_ms, attempt = value
    return pop_ms, invisible_ms, -start, attempt or ""


def _of_pop(value: Value) -> tuple[Any, ...]:
    since, _length, pop_ms, _invisible_ms = value
    return since, not pop_ms, value


def _of_lock(value: Value) -> tuple[int, bool]:
    token, client_id = value
    return token, not client_id


KINDS = {kind.name: kind for kind in (ESCAPES, GIVEN, POPS, OFFSETS, TRANSACTIONS, LOCKS)}
