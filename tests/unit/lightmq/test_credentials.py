"""Password files and access keys: what is written, and what is refused."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from argon2 import PasswordHasher

from lightmq.credentials import PasswordFile, make, variable
from remoting.client.connection import read_signer
from remoting.protocol.errors import LocalMisuse
from remoting.server.router import parse_access_keys


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


def test_each_name_gets_a_key_that_its_readers_understand(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    assert make(folder, ["broker-a", "proxies", "broker-a"]) == ["broker-a", "proxies"]
    signers = {name: read_signer(folder / name) for name in ("broker-a", "proxies")}
    together = parse_access_keys((folder / "all").read_text().split(","))
    assert {name: signer.secret for name, signer in signers.items()} == together
    assert len(set(together.values())) == 2
    variables = dict(line.split("=", 1) for line in (folder / "env").read_text().splitlines())
    assert set(variables) == {"LIGHTMQ_ACCESS_KEYS", "LIGHTMQ_KEY_BROKER_A", "LIGHTMQ_KEY_PROXIES"}
    assert variables[variable("broker-a")] == (folder / "broker-a").read_text().strip()
    for path in folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_one_more_changes_nothing_for_the_others(tmp_path: Path) -> None:
    make(tmp_path, ["a", "b"])
    before = (tmp_path / "a").read_bytes()
    assert make(tmp_path, ["a", "c"]) == ["c"]
    assert (tmp_path / "a").read_bytes() == before
    assert set(parse_access_keys((tmp_path / "all").read_text().split(","))) == {"a", "b", "c"}


@pytest.mark.parametrize("names", [[], ["a b"], ["all"], ["env"], ["../x"], ["a,b"], ["a:b"], ["a", "A"], [""]])
def test_invalid_names(tmp_path: Path, names: list[str]) -> None:
    with pytest.raises(LocalMisuse):
        make(tmp_path, names)


def test_an_invalid_key_is_not_added_to_the_list(tmp_path: Path) -> None:
    for text in ("b:secret", "a:one,two", "nonsense"):
        (tmp_path / "a").write_text(text)
        (tmp_path / "a").chmod(0o600)
        with pytest.raises(LocalMisuse) as caught:
            make(tmp_path, ["c"])
        assert "secret" not in str(caught.value).replace("key:secret", "")
