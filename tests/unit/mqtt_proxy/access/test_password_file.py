"""The password file: what is accepted, refused and reported."""

from __future__ import annotations

from pathlib import Path

import argon2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtt_proxy.access.password_method import PasswordFileError, load, parse
from mqtt_proxy.access.scram import derive

HASH = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash("right")


def test_users_and_problems() -> None:
    """Valid lines admit their users; every other line is reported by number and without its text."""
    text = f"# users\nann:{HASH}\n\nbob\n:{HASH}\nkim:plain-secret\n\xff:x\nann:b:{HASH}\n"
    found = parse(text.encode("latin-1"))
    assert found.hashes == {"ann": HASH, "ann:b": HASH}
    assert [problem.split(":")[0] for problem in found.problems] == ["line 3", "line 4", "line 5", "line 6", "line 7"]
    assert "plain-secret" not in "".join(found.problems)


def test_a_user_named_twice_is_denied() -> None:
    """There is no telling which of the two lines is meant."""
    found = parse(f"ann:{HASH}\nbob:{HASH}\nann:{HASH}\nann:{HASH}\n".encode())
    assert list(found.hashes) == ["bob"]
    assert len(found.problems) == 2


def test_other_kinds_of_argon2_are_refused() -> None:
    """argon2i is weaker than what the documentation promises."""
    other = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1, type=argon2.Type.I).hash("x")
    found = parse(f"ann:{other}".encode())
    assert not found.hashes
    assert "another kind" in found.problems[0]


def test_the_file_must_exist_and_be_private(tmp_path: Path) -> None:
    """A file that other users can read or write is not used; neither is a directory."""
    path = tmp_path / "passwords"
    with pytest.raises(PasswordFileError, match="No such file"):
        load(path)
    path.write_text(f"ann:{HASH}\n")
    path.chmod(0o644)
    with pytest.raises(PasswordFileError, match="chmod 600"):
        load(path)
    path.chmod(0o600)
    assert load(path).hashes == {"ann": HASH}
    with pytest.raises(PasswordFileError, match="not a regular file"):
        load(tmp_path)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_user_or_admit_nobody(data: bytes) -> None:
    """Whatever the file contains, reading it never fails."""
    found = parse(data)
    assert all(stored.startswith("$argon2id$") for stored in found.hashes.values())


def test_credentials_of_scram() -> None:
    """They may be mixed with hashes; a malformed line admits no user."""
    good = str(derive("x", b"salt", 4_096))
    found = parse(f"ann:{good}\na:b:{good}\nbob:{good}x\n:{good}\ncid:{good.replace('4096', '1')}\n".encode())
    assert found.hashes == {"ann": good, "a:b": good}
    assert [problem.partition(":")[0] for problem in found.problems] == ["line 3", "line 4", "line 5"]
