"""Runs of the key index: what is written is found, and damage is noticed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.store.errors import CorruptIndex
from broker.store.keys.key_run import ENTRY_BYTES, Columns, KeyRun, key_run_path, sort_keys, write_key_run


def columns(hashes: list[int], first: int = 0) -> Columns:
    """Entries of these numbers, at rising positions, each a second later."""
    at = np.arange(first, first + len(hashes), dtype=np.int64)
    return np.array(hashes, np.uint32), at * 8, np.full(len(hashes), 96, np.uint32), at.astype(np.uint32)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.lists(st.sampled_from([0, 1, 7, 2**31, 2**32 - 1]), max_size=20), min_size=1, max_size=3))
def test_every_number_finds_its_entries_in_log_order(tmp_path_factory: pytest.TempPathFactory, parts) -> None:
    """Whatever pieces the run was sorted from."""
    directory = tmp_path_factory.mktemp("keys")
    pieces, flat = [], []
    for part in parts:
        pieces.append(columns(part, len(flat)))
        flat += part
    write_key_run(key_run_path(directory, 3), 3, 2, (0, 8 * len(flat)), sort_keys(pieces))
    run = KeyRun(key_run_path(directory, 3))
    assert (run.file_id, run.level, run.entry_count) == (3, 2, len(flat))
    assert (run.first_position, run.end_position) == (0, 8 * len(flat))
    assert run.path.stat().st_size == 64 + ENTRY_BYTES * len(flat)
    for number in (0, 1, 2, 7, 2**31, 2**32 - 1):
        meant = [at for at, value in enumerate(flat) if value == number]
        positions, seconds = run.find(number)
        assert positions.tolist() == [8 * at for at in meant]
        assert seconds.tolist() == meant
    assert [column.tolist() for column in sort_keys([run.columns()])] == [c.tolist() for c in run.columns()]


def test_damage_is_noticed(tmp_path: Path) -> None:
    """The header at the opening, the columns by verify and before they are merged."""
    path = key_run_path(tmp_path, 1)
    write_key_run(path, 1, 0, (0, 800), columns([5, 6, 7]))
    good = path.read_bytes()
    for at, text in ((0, "no run"), (9, "header"), (24, "no run"), (34, "header"), (49, "header")):
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        with pytest.raises(CorruptIndex, match=text):
            KeyRun(path)
    for short in (good[:40], good[:-1]):
        path.write_bytes(short)
        with pytest.raises(CorruptIndex):
            KeyRun(path)
    path.write_bytes(good[:-1] + b"\xff")
    run = KeyRun(path)
    for check in (run.verify, run.columns):
        with pytest.raises(CorruptIndex, match="columns"):
            check()
