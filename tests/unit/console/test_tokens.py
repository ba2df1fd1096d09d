"""Tokens, and the whole console: `console.tokens`; `console.app`, `console.config`, `console.codes`, `console.tail` and
`console.publishing` are reached by the tests of `console/api` and `console/web`, which start all of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from console.tokens import NAME, TokenFile, hash_of
from console.viewers import ADMIN, MONITOR
from remoting.protocol.errors import LocalMisuse


def test_the_file_holds_a_hash_and_nobody_else_reads_it(tmp_path: Path) -> None:
    tokens = TokenFile(tmp_path)
    assert not tokens.exists
    token = tokens.renew(ADMIN)
    file = tmp_path / NAME
    assert token not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    assert (tokens.role(token), tokens.role(token + "x"), tokens.role("")) == (ADMIN, None, None)


def test_a_new_token_replaces_the_old_one_of_its_role_at_once(tmp_path: Path) -> None:
    """Also for a server that has read the file before."""
    server, command = TokenFile(tmp_path), TokenFile(tmp_path)
    old, other = command.renew(ADMIN), command.renew(MONITOR)
    assert (server.role(old), server.role(other)) == (ADMIN, MONITOR)
    assert server.holds(ADMIN, hash_of(old))
    new = command.renew(ADMIN)
    assert (server.role(old), server.role(new), server.role(other)) == (None, ADMIN, MONITOR)
    assert not server.holds(ADMIN, hash_of(old))


def test_the_file_of_a_token_that_nobody_saw_ends_with_the_token(tmp_path: Path) -> None:
    tokens = TokenFile(tmp_path)
    path = tokens.keep_unshown(tokens.renew(ADMIN))
    assert (tokens.role(path.read_text().strip()), path.stat().st_mode & 0o777) == (ADMIN, 0o600)
    tokens.renew(MONITOR)
    assert path.exists()
    tokens.renew(ADMIN)
    assert not path.exists()


def test_a_file_that_is_none_lets_nobody_in(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text("{")
    with pytest.raises(LocalMisuse, match="remove it"):
        TokenFile(tmp_path).role("x")
