"""The errors say what the asker can do."""

from __future__ import annotations

import asyncio
import os
import shutil

import pytest

from controller.consensus.engine import ConsensusFailed, NotLeading, SingleEngine, check_members
from controller.consensus.journal import Journal
from remoting.protocol.errors import LocalMisuse


def test_the_error_names_the_leader():
    """Or says that it is not known."""
    assert "n2" in str(NotLeading("n2"))
    assert "not known" in str(NotLeading(None))


class Words:
    """A state machine that records what it applied."""

    def __init__(self):
        self.words = []

    def apply(self, data):
        self.words.append(bytes(data))
        return len(self.words)

    def encode(self):
        return b",".join(self.words)

    def restore(self, data):
        self.words = data.split(b",") if data else []


async def started(directory, **options):
    engine = SingleEngine(directory, Words(), **options)
    await engine.start()
    return engine


async def test_answers_come_in_order_and_survive(tmp_path):
    """Many at once, one after the other, then another start on the same directory."""
    engine = await started(tmp_path, snapshot_entries=7)
    changes = []
    engine.on_leadership(changes.append)
    words = [b"%d" % number for number in range(50)]
    assert await asyncio.gather(*map(engine.propose, words)) == list(range(1, 51))
    for word in (b"x", b"y"):
        await engine.propose(word)
        words.append(word)
    await engine.barrier()
    assert (engine.is_leader, engine.leader, engine.snapshots > 0) == (True, "n1", True)
    await engine.stop()
    assert changes == [False]
    for refused in (engine.propose(b"z"), engine.barrier()):
        with pytest.raises(NotLeading):
            await refused
    again = await started(tmp_path, snapshot_entries=7)
    assert again._machine.words == words
    assert again.status()["applied"] == engine.applied
    await again.stop()


async def test_a_crash_anywhere_keeps_what_was_answered(tmp_path):
    """A copy of the directory after each file operation starts with at least what was answered by then."""
    directory, answered = tmp_path / "data", []
    engine = await started(directory, snapshot_entries=3)
    copies = []
    real = os.fsync

    def copying(descriptor):
        real(descriptor)
        target = tmp_path / f"copy-{len(copies)}"
        shutil.copytree(directory, target)
        copies.append((target, len(answered)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", copying)
        patch.setattr(os, "fdatasync", copying)
        for number in range(12):
            await engine.propose(b"%d" % number)
            answered.append(number)
    await engine.stop()
    assert len(copies) > 20
    for target, count in copies:
        restarted = await started(target, snapshot_entries=3)
        words = restarted._machine.words
        assert words == [b"%d" % number for number in range(len(words))]
        assert len(words) >= count
        await restarted.stop()


async def test_a_write_that_fails_ends_it(tmp_path, monkeypatch, capsys):
    """Waiting callers get the error, nothing is applied, and no more proposals are accepted."""
    engine = await started(tmp_path)

    def fail(_descriptor):
        raise OSError("no space")

    monkeypatch.setattr(Journal, "sync", fail)
    with pytest.raises(ConsensusFailed, match="no space"):
        await engine.propose(b"x")
    assert isinstance(await engine.until_failed(), ConsensusFailed)
    with pytest.raises(NotLeading):
        await engine.propose(b"y")
    assert engine._machine.words == []
    await engine.stop()


async def test_what_does_not_fit_together_is_refused(tmp_path):
    """A snapshot without its journal, and the directory of other controllers."""
    engine = await started(tmp_path, snapshot_entries=2)
    for number in range(9):
        await engine.propose(b"%d" % number)
    await engine.stop()
    with pytest.raises(LocalMisuse, match="belongs to the controllers n1"):
        check_members(tmp_path, ("n1", "n2", "n3"))
    (tmp_path / "journal").unlink()
    with pytest.raises(LocalMisuse, match="does not follow"):
        await started(tmp_path)
