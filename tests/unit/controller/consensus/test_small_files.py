"""Snapshot and vote come back whole or not at all."""

from __future__ import annotations

import pytest

from controller.consensus import journal
from controller.consensus.journal import RaftSnapshot, SnapshotPieces, Vote, load, save
from remoting.protocol.errors import LocalMisuse, RemoteViolation

CONTENTS = [RaftSnapshot((b"a", 1, 0), (b"b", 2, 1), b"state"), Vote(3, "n1", 7, ("n1", "n2"))]


@pytest.mark.parametrize("content", CONTENTS, ids=lambda content: type(content).__name__)
def test_content_comes_back(tmp_path, content):
    """What was saved last; nothing where there is no file."""
    path = tmp_path / "file"
    assert load(path, type(content)) is None
    save(path, content)
    assert load(path, type(content)) == content


@pytest.mark.parametrize("content", CONTENTS, ids=lambda content: type(content).__name__)
def test_any_changed_or_missing_byte_is_told(tmp_path, content):
    """A vote read wrongly could elect two leaders."""
    path = tmp_path / "file"
    save(path, content)
    data = path.read_bytes()
    for at in range(len(data)):
        for damaged in (data[:at], data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]):
            path.write_bytes(damaged)
            with pytest.raises(LocalMisuse, match="is damaged"):
                load(path, type(content))


def test_a_snapshot_comes_in_pieces(tmp_path, monkeypatch):
    """Whole at the last one; restarted by a first one; damage and too much are the sender's fault."""
    save(tmp_path / "file", CONTENTS[0])
    data = (tmp_path / "file").read_bytes()
    pieces = SnapshotPieces()
    assert pieces.take(b"from a connection before", first=True, last=False) is None
    assert pieces.take(data[:9], first=True, last=False) is None
    assert pieces.take(data[9:], first=False, last=True) == CONTENTS[0]
    assert pieces.take(b"", first=False, last=True) is None
    with pytest.raises(RemoteViolation, match="is damaged"):
        pieces.take(data[9:], first=False, last=True)
    monkeypatch.setattr(journal, "SNAPSHOT_BYTES_MAX", 20)
    with pytest.raises(RemoteViolation, match="above 20 bytes"):
        pieces.take(bytes(21), first=True, last=False)
