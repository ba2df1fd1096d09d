"""The members of a group that elects its own master, as configured, and what such a group refuses at the start.

Each member is `name@host:port`, the address where its clients reach it; its broker id is its place in the list,
counted from 1. Invariant: a group that could not keep its promise, or a log that it did not write, is refused with
what the operator has to do. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.replication.majority import Majority
from remoting.protocol.addresses import join_address, split_address
from remoting.protocol.errors import LocalMisuse

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from broker.roles.replicas_manager import SavedIdentity

MODE = "dledger"
NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")
"""A member's name."""
MEMBERS_MAX = 16


@dataclass(frozen=True, slots=True)
class GroupMembers:
    """All members, in their order."""

    addresses: dict[str, str]
    """Name -> host:port."""
    own: str
    """This broker's name."""

    @staticmethod
    def of(config: BrokerConfig) -> GroupMembers:
        """The members that the configuration names. Raises LocalMisuse."""
        settings = config.replication
        if config.store.flush != "sync":
            raise LocalMisuse(
                f'replication.mode = "{MODE}" counts copies on disks: store.flush = "sync" is needed, '
                f"not {config.store.flush!r}"
            )
        if settings.learner:
            raise LocalMisuse(f'replication.learner needs controllers, not replication.mode = "{MODE}"')
        addresses: dict[str, str] = {}
        for text in settings.members:
            name, _, address = text.partition("@")
            if not NAME.match(name) or name in addresses or not _is_address(address):
                raise LocalMisuse(f"replication.members: {text!r} is not name@host:port with a name of its own")
            addresses[name] = address
        if not 2 <= len(addresses) <= MEMBERS_MAX:
            raise LocalMisuse(
                f'replication.mode = "{MODE}" needs replication.members, the same on each broker: 2 to {MEMBERS_MAX} '
                f"of name@host:port, three to survive the loss of one; there are {len(addresses)}"
            )
        return GroupMembers(addresses, _own(config, addresses))

    @property
    def names(self) -> list[str]:
        """The names, in order."""
        return list(self.addresses)

    @property
    def text(self) -> str:
        """All of them as one text, to be compared with another member's."""
        return ",".join(f"{name}@{address}" for name, address in self.addresses.items())

    @property
    def ids(self) -> frozenset[int]:
        """Their broker ids."""
        return frozenset(range(1, len(self.addresses) + 1))

    @property
    def own_id(self) -> int:
        """Its place in the list, counted from 1."""
        return self.id_of(self.own)

    def id_of(self, name: str) -> int:
        """The broker id of a member."""
        return self.names.index(name) + 1

    def warnings(self) -> list[str]:
        """What such a group cannot do, though it runs."""
        count = len(self.addresses)
        size = Majority(self.ids, lambda: True).size
        if count == 2:
            return ["two members: a majority is both; the loss of one stops the group, of its disk for good; use three"]
        if count % 2 == 0:
            return [f"{count} members survive the loss of {count - size}, as {count - 1} do"]
        return []

    def check_identity(self, identity: SavedIdentity) -> None:
        """Raises LocalMisuse when the directory belongs to a member of another kind of group, or to another member."""
        if identity.admitted is None:
            if identity.broker_id is not None:
                raise LocalMisuse(
                    "this directory belongs to a group with controllers; start with an empty one, or set "
                    'replication.mode = "controller"'
                )
            return
        if identity.members != ",".join(self.names) or identity.broker_id != self.own_id:
            raise LocalMisuse(
                f"this directory is that of member {identity.broker_id} of {identity.members}, replication.members and "
                f"node_id say {self.own_id} of {','.join(self.names)}: the members of such a group never change"
            )

    def check_log(self, identity: SavedIdentity, end: int) -> None:
        """Raises LocalMisuse for a log that no such group has written."""
        if identity.admitted is None and end > 0:
            raise LocalMisuse(
                f'this log was written without replication.mode = "{MODE}"; a new group starts with empty directories'
            )


def _own(config: BrokerConfig, addresses: dict[str, str]) -> str:
    wanted = config.replication.node_id
    if wanted:
        if wanted not in addresses:
            raise LocalMisuse(f"replication.node_id {wanted!r} is none of the members {', '.join(addresses)}")
        return wanted
    address = join_address(config.advertised_host or config.host, config.port)
    found = [name for name, each in addresses.items() if each == address]
    if len(found) != 1:
        raise LocalMisuse(
            f"none of replication.members has this broker's address {address}: correct them, or name this one with "
            "replication.node_id"
        )
    return found[0]


def _is_address(text: str) -> bool:
    try:
        split_address(text)
    except ValueError:
        return False
    return True
