"""What a pull is answered with, from what was found in the queue: where a broker is sure, and where it is not.

    found                        sure                                  not sure
    messages                     0, continue behind them               the same
    nothing at the end           19, continue here                     the same
    offset behind the end        21, continue at the end, with proof   19, continue here
    offset no longer there       21, continue at the first one         19, continue here
    damaged                      21, continue behind the damage        19, continue here
    no such queue                19, continue at 0, with proof         19, continue here

A master is sure once it has confirmed all that its log had when it became the master: only then has it everything that
any reader was shown before. A replica is never sure: it may know less than its master, and may have lost what its
master has. Who is not sure never moves a reader but by the messages it gives. Who is sure may have a successor that it
does not know yet, so before it sends a reader back it needs proof (`read_barrier`); until then, or without it, it
answers as if it were not sure. Invariant: whichever brokers a reader asks, and through a failover, its offset does not
fall, and no message is passed over. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.store.errors import UnreadableOffsets
from broker.store.index.reader import OFFSET_TOO_LARGE, OFFSET_TOO_SMALL, OK, ReadResult
from remoting.protocol.frames.codes import ResponseCode

FOUND = "FOUND"


@dataclass(frozen=True, slots=True)
class PullOutcome:
    """Code and remark of an answer, and where the reader continues."""

    code: int
    remark: str
    next_offset: int
    needs_proof: bool = False
    """Whether the reader is sent back once it is proven that no other master has shown more."""


def pull_outcome(
    found: ReadResult | UnreadableOffsets | None, asked: int, *, is_sure: bool, is_proven: bool = False
) -> PullOutcome:
    """The answer to a pull of the offset `asked`; `found` is None where there is no such queue."""
    is_ok = isinstance(found, ReadResult) and found.status == OK
    outcome = _outcome(found, asked) if is_ok or is_sure else None
    if outcome is None or (outcome.next_offset < asked and not is_proven):
        return PullOutcome(ResponseCode.PULL_NOT_FOUND, "NOT_CONFIRMED_HERE_YET", asked, outcome is not None)
    return outcome


def _outcome(found: ReadResult | UnreadableOffsets | None, asked: int) -> PullOutcome:
    if found is None:
        return PullOutcome(ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE", 0)
    if isinstance(found, UnreadableOffsets):
        return PullOutcome(ResponseCode.PULL_OFFSET_MOVED, f"DAMAGED: {found}", found.next_offset)
    is_empty = found.max_offset == 0
    if found.status == OFFSET_TOO_LARGE:
        remark = "NO_MESSAGE_IN_QUEUE" if is_empty else "OFFSET_OVERFLOW_BADLY"
        return PullOutcome(ResponseCode.PULL_OFFSET_MOVED, remark, found.max_offset)
    if found.status == OFFSET_TOO_SMALL:
        return PullOutcome(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", found.first_offset)
    if not found.records:
        remark = "NO_MESSAGE_IN_QUEUE" if is_empty else "OFFSET_OVERFLOW_ONE"
        return PullOutcome(ResponseCode.PULL_NOT_FOUND, remark, asked)
    return PullOutcome(ResponseCode.SUCCESS, FOUND, found.next_offset)
