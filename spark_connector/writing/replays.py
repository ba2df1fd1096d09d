"""Whether a batch number that was committed before has the same rows again, and what to say where it has not.

Batches are counted by Spark's checkpoint, so a number says which batch is meant only as long as the checkpoint goes on.
A replay (same number, same rows) is what exactly-once is for; other rows under a committed number would be lost if they
were taken for one. Which of three things happened is told by what is known:

    another query's id, or batch 0                       a new checkpoint under the name
    committed while these rows were staged, or after     a copy of the checkpoint, and two queries at once
    this run of the query had committed before
    otherwise                                            a checkpoint restored from an older backup

A batch write that belongs to no query has no checkpoint: its `txnVersion` is the caller's, who used it for other rows.

Invariant: rows are passed over only where they are known to be the committed ones, where the ledger does not know what
these were (of an earlier release), or where the user said so (`replayMismatch` = skip). Pure, but for the runs that
this process knows to have committed. Thread rule: the driver's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from remoting.protocol.bodies.sink_body import BatchDigest
from spark_connector.errors import OptionError
from spark_connector.options.read_write import WriteOptions

KIND, BATCH_KIND = 1, 2
"""Numbers of the ways in which rows are hashed: as images, and those of batch topics."""
WHOLE = 2**64
SKIP = "skip"
RUNS_REMEMBERED = 1_000
SOME_RUN = "?"
"""The run of a query where it is not known which one it is."""
SWITCH = "If it has other rows each time it is repeated, set the option 'replayMismatch' = skip."
_COMMITTED: dict[str, None] = {}
"""Runs of queries that have committed a batch in this process; the oldest is forgotten first."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """A batch as a driver has it: its number, the digest of its rows (None: not made), the run it belongs to."""

    sink: str
    batch: int
    digest: BatchDigest | None
    run: str = ""

    @property
    def is_of_query(self) -> bool:
        """Whether a query wrote it, so that a checkpoint counts its batches."""
        return bool(self.run or (self.digest is not None and self.digest.writer))


def total(digests: Iterable[BatchDigest | None], writer: str = "") -> BatchDigest | None:
    """The digest of all these rows together, of the query `writer`; None where one of the parts has none."""
    count = low = high = 0
    kind = KIND
    for one in digests:
        if one is None:
            return None
        count, low, high, writer = count + one.rows, low + one.low, high + one.high, writer or one.writer
        kind = max(kind, one.kind)
    return BatchDigest(count, low % WHOLE, high % WHOLE, kind, writer)


def are_same(one: BatchDigest, other: BatchDigest) -> bool:
    """Whether two digests are of the same rows; also where that cannot be told, by digests of different kinds."""
    return one.kind != other.kind or (one.rows, one.low, one.high) == (other.rows, other.low, other.high)


def note_commit(run: str) -> None:
    """Remember that this run of a query has committed."""
    if run:
        while len(_COMMITTED) >= RUNS_REMEMBERED:
            _COMMITTED.pop(next(iter(_COMMITTED)))
        _COMMITTED[run] = None


def check_behind(mine: Replayed, last: int, options: WriteOptions) -> None:
    """Raise OptionError for a batch before the last committed one: what its rows were is not known any more."""
    if mine.batch >= last or options.replay_mismatch == SKIP:
        return
    if options.txn_app_id is not None and not mine.is_of_query:
        raise OptionError(
            f"'txnAppId' = {mine.sink!r} has committed version {last}, and this write is version {mine.batch}: whether "
            "its rows are in the log is not known any more. Nothing of it was written. Give each write a higher "
            "'txnVersion' than the one before it, and writes of another kind a 'txnAppId' of their own."
        )
    raise OptionError(
        f"sink {mine.sink!r} has committed batch {last} and this query writes batch {mine.batch}: it has another "
        "checkpoint, or one that was restored from an older backup, whose rows would be taken for repeated ones and "
        f"lost. Go on with a checkpoint that has finished batch {last - 1}, or begin with a new checkpoint, "
        "'startingOffsets' where the sink ends, and a name of its own ('sinkId', 'txnAppId' or the batch writer's)"
    )


def check_same(mine: Replayed, known: BatchDigest | None, options: WriteOptions, *, was_staged: bool) -> None:
    """Raise OptionError unless the batch has the rows that were committed; `was_staged`: it was not committed before
    all of its tasks had begun."""
    if known is None or mine.digest is None or options.replay_mismatch == SKIP or are_same(known, mine.digest):
        return
    ours = f"{mine.digest.rows}" if mine.digest.rows != known.rows else "as many"
    if options.txn_app_id is not None and not mine.is_of_query:
        raise OptionError(
            f"'txnAppId' = {mine.sink!r} has committed version {mine.batch} with {known.rows} rows, and this write has "
            f"{ours} other ones under the same version. Nothing of it was written. Give new rows a higher "
            f"'txnVersion', and writes of another kind a 'txnAppId' of their own. {SWITCH}"
        )
    begun = f"sink {mine.sink!r} has committed batch {mine.batch} with {known.rows} rows"
    raise OptionError(
        f"{begun}, and this query writes {ours} other ones under the same number: {_reason(mine, known, was_staged)} "
        f"Nothing of this batch was written. {SWITCH}"
    )


def _reason(mine: Replayed, known: BatchDigest, was_staged: bool) -> str:
    """What it looks like, and what to do."""
    is_other_query = bool(known.writer and mine.digest and mine.digest.writer and known.writer != mine.digest.writer)
    if was_staged or (mine.run in _COMMITTED and not is_other_query):
        return (
            "it looks like a copied checkpoint that two queries use at once. Stop one of them; give the other a "
            "checkpoint of its own and a sink of its own ('sinkId', or the batch writer's name)."
        )
    if is_other_query or (mine.batch == 0 and not known.writer):
        return (
            "it looks like a new checkpoint under the name of an older one. Give the query a sink of its own "
            "('sinkId', or the batch writer's name), or go on with the checkpoint that wrote the batches so far."
        )
    return (
        "it looks like a checkpoint that was restored from an older backup. Restore one that has finished batch "
        f"{mine.batch}, or begin with a new checkpoint, 'startingOffsets' where the sink ends, and a new name "
        "('sinkId', or the batch writer's)."
    )
