"""The outcome of a pull: what moves a reader, and that nothing does where a broker is not sure."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.reading.pull_outcome import pull_outcome
from broker.store.errors import CorruptLog, UnreadableOffsets
from broker.store.index.reader import OFFSET_TOO_LARGE, OFFSET_TOO_SMALL, OK, ReadResult
from remoting.protocol.frames.codes import ResponseCode as Code

RECORD = memoryview(b"record")
DAMAGE = UnreadableOffsets(CorruptLog(Path("log"), 0, "torn"), 1, 5, 9)


@pytest.mark.parametrize(
    ("found", "sure", "unsure"),
    [
        (ReadResult(OK, 5, 7, 2, 20, [RECORD, RECORD]), (Code.SUCCESS, 7), (Code.SUCCESS, 7)),
        (ReadResult(OK, 5, 5, 2, 5), (Code.PULL_NOT_FOUND, 5), (Code.PULL_NOT_FOUND, 5)),
        (ReadResult(OFFSET_TOO_LARGE, 5, 3, 2, 3), (Code.PULL_OFFSET_MOVED, 3), (Code.PULL_NOT_FOUND, 5)),
        (ReadResult(OFFSET_TOO_SMALL, 8, 9, 8, 20, [RECORD]), (Code.PULL_OFFSET_MOVED, 8), (Code.PULL_NOT_FOUND, 5)),
        (DAMAGE, (Code.PULL_OFFSET_MOVED, 9), (Code.PULL_NOT_FOUND, 5)),
        (None, (Code.PULL_NOT_FOUND, 0), (Code.PULL_NOT_FOUND, 5)),
    ],
)
def test_only_who_is_sure_moves_a_reader(
    found: ReadResult | UnreadableOffsets | None, sure: tuple[int, int], unsure: tuple[int, int]
) -> None:
    """A reader at 5, by the code of the answer and where it continues."""
    outcomes = [pull_outcome(found, 5, is_sure=is_sure, is_proven=True) for is_sure in (True, False)]
    assert [(outcome.code, outcome.next_offset) for outcome in outcomes] == [sure, unsure]


@pytest.mark.parametrize(
    ("found", "needs_proof"),
    [
        (ReadResult(OK, 5, 7, 2, 20, [RECORD, RECORD]), False),
        (ReadResult(OK, 5, 5, 2, 5), False),
        (ReadResult(OFFSET_TOO_LARGE, 5, 3, 2, 3), True),
        (ReadResult(OFFSET_TOO_SMALL, 8, 9, 8, 20, [RECORD]), False),
        (DAMAGE, False),
        (None, True),
    ],
)
def test_nobody_is_sent_back_without_proof(found: ReadResult | UnreadableOffsets | None, needs_proof: bool) -> None:
    outcome = pull_outcome(found, 5, is_sure=True)
    assert outcome.needs_proof == needs_proof
    assert outcome.next_offset >= 5
    assert not pull_outcome(found, 5, is_sure=True, is_proven=True).needs_proof
    assert not pull_outcome(found, 5, is_sure=False).needs_proof, "there is nothing to prove yet"
