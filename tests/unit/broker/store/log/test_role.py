"""Roles a store is opened in."""

from __future__ import annotations

import pytest

from broker.store.log.epoch_file import Role, role_of
from remoting.protocol.errors import LocalMisuse


def test_roles_by_name() -> None:
    """A writer without an epoch is a node by itself; with one, like every replica, it belongs to a group."""
    assert role_of("writer", None) == Role()
    assert role_of("writer", 4) == Role(epoch=4)
    assert role_of("replica", None) == Role(replica=True)
    assert [role_of(*each).grouped for each in (("writer", None), ("writer", 4), ("replica", None))] == [
        False,
        True,
        True,
    ]


@pytest.mark.parametrize(("name", "epoch"), [("replica", 3), ("leader", None), ("", 1)])
def test_what_is_no_role(name: str, epoch: int | None) -> None:
    """A replica has no epoch of its own, and there are two roles only."""
    with pytest.raises(LocalMisuse):
        role_of(name, epoch)
