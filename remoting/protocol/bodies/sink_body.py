"""Bodies of the exactly-once sink: STAGE (reply), COMMIT_BATCH, ABORT_BATCH, LEDGER, as msgpack arrays.

Tasks stage their rows under (sink, batch, partition, attempt); the driver commits exactly one attempt per partition.
The ledger remembers the last committed batch per sink, so a repeated commit is answered `already` and appends
nothing. A batch of several broker groups is decided by the commit at one of them, the sink's home: the others
`prepare` it first, and the home keeps with its ledger what each has to commit, for whichever driver finishes it.
A number alone does not say what a batch was: the commit has a digest of all its rows, which the home's ledger keeps and
answers, so that whoever repeats the number can tell whether it has the same rows.
Invariant: prepared attempts are kept until their batch or a later one is committed. Use `encode(message)` and
`decode(Kind, body)`. Thread rule: plain values, pure functions.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from remoting.protocol.bodies.packed import decode, encode

__all__ = [
    "NO_BATCH",
    "AbortBatch",
    "Batch",
    "BatchCommitted",
    "BatchDigest",
    "CommitBatch",
    "Count",
    "Ledger",
    "LedgerState",
    "Planned",
    "StageHandle",
    "StageReply",
    "decode",
    "encode",
]

NO_BATCH = -1
"""LedgerState.last_batch of a sink that never committed."""

Batch = Annotated[int, Meta(ge=-1)]
Count = Annotated[int, Meta(ge=0)]
Sum = Annotated[int, Meta(ge=0)]
"""Of 64 bits."""


class StageReply(msgspec.Struct, array_like=True):
    """The number of messages staged by this attempt so far."""

    count: Count


class StageHandle(msgspec.Struct, array_like=True):
    """The attempt to commit for a partition, and the messages it staged; the broker checks the number."""

    partition: Count
    attempt: Count
    count: Count


class Planned(msgspec.Struct, array_like=True):
    """The part of a batch at another broker group, by the group's name."""

    group: str
    handles: list[StageHandle]


class BatchDigest(msgspec.Struct, array_like=True, frozen=True):
    """What the rows of a whole batch were, at all groups: their number and two sums of hashes of `kind`.

    `writer`: the query that wrote them, empty where that is not known. Only digests of one kind can be compared.
    """

    rows: Count
    low: Sum
    high: Sum
    kind: Count
    writer: str = ""


class CommitBatch(msgspec.Struct, array_like=True):
    """Make the staged attempts of one batch visible, all or nothing.

    `plan`: the parts of the batch at other groups; kept with the ledger. `prepare`: make nothing visible yet, but check
    the attempts and keep them until the commit, however late. `digest`: of the whole batch, for its home's ledger.
    """

    sink: str
    batch: Batch
    handles: list[StageHandle]
    plan: list[Planned] = []
    prepare: bool = False
    digest: BatchDigest | None = None


class BatchCommitted(msgspec.Struct, array_like=True):
    """`already`: the ledger had this batch; `count`: messages this request made visible; `plan`: that of the batch;
    `digest`: what the committed rows were, None where that is not known (any more)."""

    already: bool
    count: Count
    plan: list[Planned] = []
    digest: BatchDigest | None = None


class AbortBatch(msgspec.Struct, array_like=True):
    """Drop what was staged for a batch; NO_BATCH: the sink will not commit again, and its ledger is removed too."""

    sink: str
    batch: Batch


class Ledger(msgspec.Struct, array_like=True):
    """Request a sink's last committed batch."""

    sink: str


class LedgerState(msgspec.Struct, array_like=True):
    """The last committed batch, NO_BATCH for none, its parts at other groups, and what its rows were, if known."""

    last_batch: Batch
    plan: list[Planned] = []
    digest: BatchDigest | None = None
