from __future__ import annotations

import stat
from pathlib import Path

import pytest
from argon2 import PasswordHasher

from lightmq.credentials.passwords import PasswordFile
from remoting.protocol.errors import LocalMisuse


def test_users_are_added_changed_and_removed_and_comments_kept(tmp_path: Path) -> None:
    path = tmp_path / "passwords"
    path.write_text("# people\n\n")
    passwords = PasswordFile(path)
    assert passwords.put("ann", "one")
    assert passwords.put("bob", "two")
    assert not passwords.put("ann", "three")
    passwords.save()
    again = PasswordFile(path)
    assert again.names() == ["ann", "bob"]
    lines = path.read_text().splitlines()
    assert lines[0] == "# people"
    name, _, hashed = lines[1].partition(":")
    assert name == "ann"
    assert hashed.startswith("$argon2id$")
    assert PasswordHasher().verify(hashed, "three")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again.remove("ann")
    again.save()
    assert PasswordFile(path).names() == ["bob"]
    with pytest.raises(LocalMisuse, match="no user 'ann'; it has: bob"):
        again.remove("ann")


@pytest.mark.parametrize(
    ("name", "password"), [("", "x"), ("a:b", "x"), ("#a", "x"), ("a\n", "x"), ("a", ""), ("a", "x" * 2000)]
)
def test_names_and_passwords_that_cannot_be_kept_are_refused(tmp_path: Path, name: str, password: str) -> None:
    with pytest.raises(LocalMisuse):
        PasswordFile(tmp_path / "none").put(name, password)
