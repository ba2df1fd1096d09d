"""The connection of ``lightmq cluster`` to the controller that leads, found from any of them.

Every controller says who leads (1005); the requests that read or change something go to that one. Invariant: what is
opened here is closed when the ``with`` block ends; a lead that moved meanwhile is reported, never guessed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

from lightmq.cli.connections.link import ServerTarget, dial
from lightmq.cli.outcome import CommandFailed
from remoting.client.blocking import BlockingConnection, checked
from remoting.client.key_file import read_signer
from remoting.client.tls import ClientTls
from remoting.protocol.bodies.controller_body import (
    ControllerMetadata,
    EpochCache,
    GroupState,
    SyncStateData,
    from_fields,
)
from remoting.protocol.bodies.route_body import ClusterInfo, decode_body
from remoting.protocol.errors import LightMQError, Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.signature import Signer

CLUSTER_DEFAULT = "DefaultCluster"
"""Of a group that has registered no route."""
PEER_TIMEOUT_MS = 2_000
"""How long a controller that does not lead may take to be called reachable."""


@dataclass(frozen=True, slots=True)
class Controllers:
    """The controllers as one of them sees them, and the connection to the one that leads."""

    metadata: ControllerMetadata
    address: str
    connection: BlockingConnection
    timeout_ms: int
    signer: Signer | None
    silent: dict[str, str] = field(default_factory=dict)
    """Addresses that gave no answer, and why."""
    tls: ClientTls | None = None
    """How to connect with TLS; None without."""

    def ask(self, command: Command) -> Command:
        """A request and its answer. Raises Refused, and CommandFailed when the lead has moved."""
        try:
            return checked(self.connection.request(command))
        except Refused as refused:
            if refused.code == ResponseCode.CONTROLLER_NOT_LEADER:
                raise CommandFailed(f"the controllers are just electing a leader; try again ({refused})") from refused
            raise

    def groups(self, name: str = "") -> dict[str, GroupState]:
        """Broker groups by name, one or all. Raises CommandFailed when there is no such group."""
        body = msgspec.json.encode([name] if name else [])
        answer = self.ask(Command(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=body))
        table = decode_body(answer.body, SyncStateData).replicas_info_table
        if name and name not in table:
            known = ", ".join(sorted(self.groups())) or "none"
            raise CommandFailed(f"the controllers know no broker group {name!r}; known: {known}")
        return dict(sorted(table.items()))

    def cluster_of(self, group: str) -> str:
        """The cluster that a group's brokers are registered under."""
        answer = self.ask(Command(RequestCode.GET_BROKER_CLUSTER_INFO))
        known = decode_body(answer.body, ClusterInfo).broker_addr_table.get(group)
        return known.cluster if known is not None else CLUSTER_DEFAULT

    def lone(self, groups: Iterable[str]) -> dict[str, str]:
        """Registered brokers that are in none of these groups, by name, with their addresses: alone, and masters."""
        answer = self.ask(Command(RequestCode.GET_BROKER_CLUSTER_INFO))
        known = decode_body(answer.body, ClusterInfo).broker_addr_table
        masters = {name: data.master() for name, data in sorted(known.items()) if name not in groups}
        return {name: address for name, address in masters.items() if address is not None}

    def settings(self, address: str) -> dict[str, str]:
        """The configuration of a broker by key; empty when there is none, or it does not tell."""
        if not address:
            return {}
        try:
            with dial(address, self.timeout_ms, self.signer, self.tls) as broker:
                text = checked(broker.request(Command(RequestCode.GET_BROKER_CONFIG))).body.decode(errors="replace")
        except LightMQError:
            return {}
        return {key: value for key, _, value in (line.partition("=") for line in text.splitlines())}

    def epochs(self, address: str) -> EpochCache | str:
        """The epochs of one broker's log, or why it does not tell them."""
        try:
            with dial(address, self.timeout_ms, self.signer, self.tls) as broker:
                return decode_body(
                    checked(broker.request(Command(RequestCode.GET_BROKER_EPOCH_CACHE))).body, EpochCache
                )
        except LightMQError as error:
            return str(error)

    def unreachable(self, addresses: Iterable[str]) -> set[str]:
        """Those of these controllers that nobody can connect to from here."""
        dead = set()
        for address in addresses:
            try:
                if address != self.address:
                    dial(address, min(self.timeout_ms, PEER_TIMEOUT_MS), self.signer, self.tls).close()
            except LightMQError:
                dead.add(address)
        return dead


@contextlib.contextmanager
def controllers(target: ServerTarget) -> Iterator[Controllers]:
    """The controller that leads, asked from the addresses of ``--server`` (several with commas).

    Raises CommandFailed when nobody answers, when what answers is no controller, and when none leads.
    """
    signer = read_signer(target.security.access_key_file) if target.security.access_key_file is not None else None
    timeout_ms = int(target.timeout * 1000)
    silent: dict[str, str] = {}
    addresses = [each.strip() for each in target.server.split(",") if each.strip()]
    with contextlib.ExitStack() as stack:
        for address in addresses:
            try:
                connection = stack.enter_context(dial(address, timeout_ms, signer, target.security.client_tls))
                metadata = _metadata(connection)
            except CommandFailed:
                raise
            except LightMQError as error:
                silent[address] = str(error)
                continue
            leader = metadata.controller_leader_address
            if metadata.is_leader:
                leader = address
            elif leader is None:
                silent[address] = "it answers, but no controller leads: is more than half of them running?"
                continue
            else:
                try:
                    connection = stack.enter_context(dial(leader, timeout_ms, signer, target.security.client_tls))
                except LightMQError as error:
                    # It may have died a moment ago: another controller may know who leads now.
                    silent[address] = f"the leading controller that it names cannot be reached: {error}"
                    continue
            yield Controllers(metadata, leader, connection, timeout_ms, signer, silent, target.security.client_tls)
            return
    raise CommandFailed(
        "no controller that leads was found: " + "; ".join(f"{at}: {why}" for at, why in silent.items())
    )


def _metadata(connection: BlockingConnection) -> ControllerMetadata:
    answer = connection.request(Command(RequestCode.CONTROLLER_GET_METADATA_INFO))
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        raise CommandFailed(f"{connection.address} is no controller: it knows no leader")
    return from_fields(checked(answer).fields, ControllerMetadata)
