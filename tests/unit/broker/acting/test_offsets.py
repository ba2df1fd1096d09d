"""Offsets in pulls while a replica stands in: kept once, and only where there is room."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.acting import journal as journal_module
from broker.acting.journal import ActingJournal
from broker.acting.kinds import OFFSETS
from broker.acting.offsets import ActingOffsets
from remoting.server.authorizer import Authorizer
from runtime.logs import get_logger
from tests.unit.broker.roles.cluster import until

KEY = ("g", "t", 0)


async def test_an_offset_that_does_not_grow_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = ActingJournal(tmp_path, get_logger("test"))
    offsets = ActingOffsets(journal, lambda: None, Authorizer())
    assert offsets.keep(KEY, 7)
    await until(lambda: journal.of(OFFSETS) == {KEY: (7,)})
    size = (tmp_path / "ACTING").stat().st_size
    assert offsets.keep(KEY, 7)
    assert offsets.keep(KEY, 5)
    assert journal.get(OFFSETS, KEY) == (7,)
    monkeypatch.setattr(journal_module, "ENTRIES_MAX", 1)
    assert not offsets.keep(("g", "t", 1), 1), "the journal is full"
    assert (tmp_path / "ACTING").stat().st_size == size
