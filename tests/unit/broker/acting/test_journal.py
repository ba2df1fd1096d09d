"""The journal of commits: what was acknowledged is there again, whatever the process or the disk did."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.acting import journal as journal_module
from broker.acting.journal import FILE_NAME, ActingJournal, decode_lines
from broker.acting.journal import encode_line as encode_entry
from broker.acting.kinds import OFFSETS
from broker.app import BrokerApp
from broker.config import BrokerConfig
from remoting.protocol.errors import Refused
from runtime.logs import get_logger

KEY = ("g", "t", 0)
OTHER = ("g", "t", 1)


def opened(directory: Path) -> ActingJournal:
    return ActingJournal(directory, get_logger("test"))


def kept(journal: ActingJournal) -> dict[tuple[str, str, int], int]:
    return {key: offset for key, (offset,) in journal.of(OFFSETS).items()}


def encode_line(key: tuple[str, str, int], offset: int) -> bytes:
    return encode_entry(OFFSETS, key, (offset,))


def decoded(data: bytes) -> tuple[dict[tuple[str, str, int], int], int]:
    entries, damaged = decode_lines(data)
    return {key: offset for key, (offset,) in entries["offset"].items()}, damaged


async def commit(journal: ActingJournal, *commits: tuple[tuple[str, str, int], int]) -> None:
    """Returns when all are on the disk. Raises what kept one from it."""
    futures = []
    for key, offset in commits:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: Exception | None, future: asyncio.Future[None] = future) -> None:
            future.set_result(None) if error is None else future.set_exception(error)

        journal.add(OFFSETS, key, (offset,), done)
        futures.append(future)
    await asyncio.gather(*futures)


async def test_the_largest_offset_is_there_after_a_restart(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    await commit(journal, (KEY, 7), (OTHER, 1), (KEY, 5))
    await commit(journal, (OTHER, 2))
    assert kept(opened(tmp_path)) == kept(journal) == {KEY: 7, OTHER: 2}


@given(st.integers(0, 200))
def test_a_torn_line_takes_nothing_else_with_it(cut: int) -> None:
    lines = encode_line(KEY, 1) + encode_line(OTHER, 2) + encode_line(KEY, 3)
    offsets, damaged = decoded(lines[: min(cut, len(lines))])
    assert damaged == 0
    assert offsets in ({}, {KEY: 1}, {KEY: 1, OTHER: 2}, {KEY: 3, OTHER: 2})


async def test_what_follows_a_torn_line_is_not_lost(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(encode_line(KEY, 1) + encode_line(KEY, 9)[:-4])
    await commit(opened(tmp_path), (OTHER, 2))
    assert kept(opened(tmp_path)) == {KEY: 1, OTHER: 2}


async def test_a_damaged_line_is_skipped(tmp_path: Path) -> None:
    damaged = encode_line(KEY, 9).replace(b"9]", b"8]")
    (tmp_path / FILE_NAME).write_bytes(encode_line(KEY, 1) + damaged + b"nonsense\n" + encode_line(OTHER, 2))
    assert kept(opened(tmp_path)) == {KEY: 1, OTHER: 2}
    assert decoded((tmp_path / FILE_NAME).read_bytes())[1] == 0, "the file was written anew without it"


async def test_what_a_master_has_is_forgotten_but_not_what_came_since(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    await commit(journal, (KEY, 7), (OTHER, 1))
    given_over = dict(journal.of(OFFSETS))
    await commit(journal, (KEY, 8))
    await journal.handed_over(OFFSETS, given_over)
    assert kept(opened(tmp_path)) == kept(journal) == {KEY: 8}
    await journal.handed_over(OFFSETS, {KEY: (8,)})
    assert not (tmp_path / FILE_NAME).exists()


async def test_a_large_file_is_not_written_anew_for_each_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """A start in between tells a master again what it has; with the last part the file goes."""
    monkeypatch.setattr(journal_module, "SMALL_ENTRIES", 1)
    journal = opened(tmp_path)
    await commit(journal, (KEY, 7), (OTHER, 1))
    await journal.handed_over(OFFSETS, {KEY: (7,)})
    assert (kept(journal), journal.parts_taken) == ({OTHER: 1}, 1)
    assert kept(opened(tmp_path)) == {KEY: 7, OTHER: 1}
    await journal.handed_over(OFFSETS, {OTHER: (1,)})
    assert not (tmp_path / FILE_NAME).exists()


async def test_nothing_is_forgotten_that_is_still_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = opened(tmp_path)
    await commit(journal, (KEY, 7), (OTHER, 1))

    def fails(_path: Path, _lines: list[bytes]) -> None:
        raise OSError("no space")

    with monkeypatch.context() as broken:
        broken.setattr(journal_module, "atomic_write", fails)
        with pytest.raises(OSError, match="no space"):
            await journal.handed_over(OFFSETS, {KEY: (7,)})
    assert kept(journal) == {KEY: 7, OTHER: 1}
    await journal.handed_over(OFFSETS, {KEY: (7,)})
    assert kept(opened(tmp_path)) == kept(journal) == {OTHER: 1}


async def test_a_full_journal_refuses_further_queues_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "ENTRIES_MAX", 1)
    journal = opened(tmp_path)
    await commit(journal, (KEY, 1))
    with pytest.raises(Refused, match="try again when there is one"):
        await commit(journal, (OTHER, 1))
    await commit(journal, (KEY, 2))
    assert (kept(journal), journal.refused) == ({KEY: 2}, 1)


async def test_several_entries_are_answered_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When all are on the disk; with the refusal of one, the others are kept all the same."""
    monkeypatch.setattr(journal_module, "ENTRIES_MAX", 3)
    journal, answers = opened(tmp_path), asyncio.Queue[Refused | None]()
    third = ("g", "t", 2)
    journal.add_all([(OFFSETS, KEY, (1,)), (OFFSETS, OTHER, (1,))], answers.put_nowait)
    assert (answers.empty(), journal.room) == (True, 1), "what is on its way takes room"
    assert await answers.get() is None
    journal.add_all([(OFFSETS, third, (1,)), (OFFSETS, ("g", "t", 3), (1,))], answers.put_nowait)
    assert await answers.get() is not None
    assert kept(opened(tmp_path)) == {KEY: 1, OTHER: 1, third: 1}
    journal.add_all([], answers.put_nowait)
    assert await answers.get() is None
    assert answers.empty()


async def test_what_cannot_be_written_is_no_success(tmp_path: Path) -> None:
    directory = tmp_path / "gone"
    directory.mkdir()
    journal = opened(directory)
    directory.rmdir()
    with pytest.raises(Refused, match="not on disk"):
        await commit(journal, (KEY, 1))
    directory.mkdir()
    await commit(journal, (OTHER, 2))
    assert kept(opened(directory)) == kept(journal) == {OTHER: 2}


async def test_the_file_does_not_grow_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "REWRITE_BYTES", 500)
    journal = opened(tmp_path)
    for offset in range(40):
        await commit(journal, (KEY, offset))
    assert (tmp_path / FILE_NAME).stat().st_size < 600
    assert kept(opened(tmp_path)) == {KEY: 39}


@pytest.mark.parametrize("names", [("g" * 600, "t" * 600), ("\u7ec4" * 200, "\u9898" * 200)])
async def test_long_names_are_refused(tmp_path: Path, names: tuple[str, str]) -> None:
    """Their bytes count, not their characters."""
    with pytest.raises(Refused, match="exceed"):
        await commit(opened(tmp_path), ((*names, 0), 1))


async def test_what_is_on_its_way_to_the_disk_is_known(tmp_path: Path) -> None:
    """So that two answers of one moment do not contradict each other; what failed is no longer known."""
    directory = tmp_path / "gone"
    directory.mkdir()
    journal = opened(directory)
    directory.rmdir()
    writing = asyncio.ensure_future(commit(journal, (KEY, 3), (KEY, 2)))
    await asyncio.sleep(0)
    assert journal.get(OFFSETS, KEY) == (3,)
    with pytest.raises(Refused):
        await writing
    await asyncio.sleep(0)
    assert journal.get(OFFSETS, KEY) is None
    directory.mkdir()
    await commit(journal, (KEY, 1))
    assert journal.get(OFFSETS, KEY) == (1,)


async def test_what_nobody_will_hand_over_is_told_at_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A broker whose `acting_master` was switched off says how many entries are left."""
    config = BrokerConfig(data_directory=tmp_path)
    for is_left in (False, True):
        if is_left:
            await commit(opened(tmp_path), (KEY, 1), (OTHER, 2))
        app = BrokerApp(config, listen=False)
        await app.start()
        await app.stop()
        assert ("acting_entries_left" in (said := capsys.readouterr().err)) is is_left
    assert "entries=2" in said
