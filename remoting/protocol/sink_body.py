"""Bodies of the exactly-once sink: STAGE (reply), COMMIT_BATCH, ABORT_BATCH, LEDGER, as msgpack arrays.

Tasks stage their rows under (sink, batch, partition, attempt); the driver commits exactly one attempt per partition.
The ledger remembers the last committed batch per sink, so a repeated commit is answered `already` and appends
nothing. Use `encode(message)` and `decode(Kind, body)`. Thread rule: plain values, pure functions.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from remoting.protocol.packed import decode, encode

__all__ = [
    "NO_BATCH",
    "AbortBatch",
    "Batch",
    "BatchCommitted",
    "CommitBatch",
    "Count",
    "Ledger",
    "LedgerState",
    "StageHandle",
    "StageReply",
    "decode",
    "encode",
]

NO_BATCH = -1
"""LedgerState.last_batch of a sink that never committed."""

Batch = Annotated[int, Meta(ge=-1)]
Count = Annotated[int, Meta(ge=0)]


class StageReply(msgspec.Struct, array_like=True):
    """How many messages of this attempt are staged in all."""

    count: Count


class StageHandle(msgspec.Struct, array_like=True):
    """The attempt of a partition that counts, and how many messages it staged; the broker checks the number."""

    partition: Count
    attempt: Count
    count: Count


class CommitBatch(msgspec.Struct, array_like=True):
    """Make the staged attempts of one batch visible, all or nothing."""

    sink: str
    batch: Batch
    handles: list[StageHandle]


class BatchCommitted(msgspec.Struct, array_like=True):
    """`already`: the ledger had this batch; `count`: messages made visible by this request."""

    already: bool
    count: Count


class AbortBatch(msgspec.Struct, array_like=True):
    """Drop what was staged for a batch; NO_BATCH: the sink will not commit again, its ledger goes too."""

    sink: str
    batch: Batch


class Ledger(msgspec.Struct, array_like=True):
    """Ask for a sink's last committed batch."""

    sink: str


class LedgerState(msgspec.Struct, array_like=True):
    """The last committed batch, NO_BATCH for none."""

    last_batch: Batch
