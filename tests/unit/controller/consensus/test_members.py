"""Lists of controllers that cannot work are refused by name; secrets are made, read and refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from controller.consensus.members import ControllerNode, is_local, parse_members, read_secret
from remoting.protocol.errors import LocalMisuse

THREE = ("n1@127.0.0.1:1@11", "n2@localhost:2@12", "n3@[::1]:3@13")


def test_three_controllers():
    """Hosts by name, by number and with a colon."""
    members = parse_members(THREE, "n2")
    assert members["n2"] == ControllerNode("n2", "localhost", 2, 12)
    assert (members["n3"].host, members["n1"].address) == ("::1", "127.0.0.1:1")
    assert is_local(members)


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (("n1",), "not of the form"),
        (("n1@h:1",), "not of the form"),
        (("n 1@h:1@2",), "not of the form"),
        (("n1@h:1@99999",), "not of the form"),
        (("n2@h:1@2",), "is not among"),
        (("n1@h:1@2", "n1@h:3@4", "n3@h:5@6"), "twice"),
        (("n1@h:1@2", "n2@h:3@2", "n3@h:5@6"), "twice"),
        (("n1@h:1@2", "n2@h:3@4"), "1, 3, 5 or 7 controllers .*, not 2"),
    ],
)
def test_lists_that_cannot_work(texts, words):
    """The message says what is wrong with which part."""
    with pytest.raises(LocalMisuse, match=words):
        parse_members(texts, "n1")


def test_a_secret_on_one_machine_is_made_once(tmp_path):
    """Controllers with sibling directories find the same secret, which no other user can read."""
    members = parse_members(THREE, "n1")
    first = read_secret(None, members, tmp_path / "c1")
    assert first == read_secret(None, members, tmp_path / "c2")
    assert len(first) > 30
    assert (tmp_path / "raft.secret").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["raft.secret"]


def test_a_secret_has_its_name_only_once_its_bytes_are_on_the_disk(tmp_path, monkeypatch):
    """And the name is durable too when the call returns."""
    steps = []
    fsync, link = os.fsync, os.link
    monkeypatch.setattr(os, "fsync", lambda fd: (steps.append(str(Path(f"/proc/self/fd/{fd}").readlink())), fsync(fd)))
    monkeypatch.setattr(os, "link", lambda *paths: (steps.append("link"), link(*paths)))
    read_secret(None, parse_members(THREE, "n1"), tmp_path / "c1")
    at = steps.index("link")
    assert any(".tmp" in step for step in steps[:at]), steps
    assert steps[at + 1 :] == [str(tmp_path)]


def test_between_machines_a_secret_must_be_given(tmp_path):
    """And it must be one: there, long enough, closed to others; its content is in no message."""
    members = parse_members(("n1@127.0.0.1:1@11", "n2@10.0.0.2:1@11", "n3@h:1@11"), "n1")
    with pytest.raises(LocalMisuse, match="raft_secret_file"):
        read_secret(None, members, tmp_path / "c1")
    path = tmp_path / "secret"
    with pytest.raises(LocalMisuse, match="No such file"):
        read_secret(path, members, tmp_path)
    path.write_text("topsecret\n")
    path.chmod(0o644)
    with pytest.raises(LocalMisuse, match="chmod 600"):
        read_secret(path, members, tmp_path)
    path.chmod(0o600)
    with pytest.raises(LocalMisuse, match="less than 16") as caught:
        read_secret(path, members, tmp_path)
    assert "topsecret" not in str(caught.value)
    path.write_text("a secret of many characters\n")
    assert read_secret(path, members, tmp_path) == b"a secret of many characters"
