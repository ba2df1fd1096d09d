"""The connection of ``lightmq cluster`` to the controller that leads, found from any of them.

Every controller names the leader (1005); requests that read or change something go to it. Invariant: connections opened
here are closed when the ``with`` block ends; a change of leader in between is reported as an error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

from lightmq.cli.connections.link import ServerTarget, dial
from lightmq.cli.outcome import CommandFailed
from remoting.client.blocking import BlockingConnection, checked
from remoting.client.connection import read_signer
from remoting.client.controllers import LeaderSearch
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
"""The cluster of a group that has registered no route."""
PEER_TIMEOUT_MS = 2_000
"""Time limit for connecting to a controller that does not lead, before it counts as unreachable."""


@dataclass(frozen=True, slots=True)
class LeadingController:
    """The controller that leads, and what commands read through it."""

    metadata: ControllerMetadata
    address: str
    connection: BlockingConnection
    timeout_ms: int
    signer: Signer | None
    tls: ClientTls | None = None
    """How to connect with TLS; None without."""

    def ask(self, command: Command) -> Command:
        """A request and its answer. Raises Refused, and CommandFailed when this controller no longer leads."""
        try:
            return checked(self.connection.request(command))
        except Refused as refused:
            if refused.code == ResponseCode.CONTROLLER_NOT_LEADER:
                raise CommandFailed(f"the controllers are electing a leader; try again ({refused})") from refused
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
        """Addresses by name of the registered brokers that belong to none of these groups: each runs alone."""
        answer = self.ask(Command(RequestCode.GET_BROKER_CLUSTER_INFO))
        known = decode_body(answer.body, ClusterInfo).broker_addr_table
        masters = {name: data.master() for name, data in sorted(known.items()) if name not in groups}
        return {name: address for name, address in masters.items() if address is not None}

    def settings(self, address: str) -> dict[str, str]:
        """The configuration of a broker by key; empty when it cannot be read."""
        if not address:
            return {}
        try:
            with dial(address, self.timeout_ms, self.signer, self.tls) as broker:
                text = checked(broker.request(Command(RequestCode.GET_BROKER_CONFIG))).body.decode(errors="replace")
        except LightMQError:
            return {}
        return {key: value for key, _, value in (line.partition("=") for line in text.splitlines())}

    def epochs(self, address: str) -> EpochCache | str:
        """The epochs of one broker's log, or why they cannot be read."""
        try:
            with dial(address, self.timeout_ms, self.signer, self.tls) as broker:
                return decode_body(
                    checked(broker.request(Command(RequestCode.GET_BROKER_EPOCH_CACHE))).body, EpochCache
                )
        except LightMQError as error:
            return str(error)

    def unreachable(self, addresses: Iterable[str]) -> set[str]:
        """Those of these controllers that this machine cannot connect to."""
        dead = set()
        for address in addresses:
            try:
                if address != self.address:
                    dial(address, min(self.timeout_ms, PEER_TIMEOUT_MS), self.signer, self.tls).close()
            except LightMQError:
                dead.add(address)
        return dead


@contextlib.contextmanager
def leading_controller(target: ServerTarget) -> Iterator[LeadingController]:
    """The controller that leads, found from the addresses of ``--server`` (several with commas).

    Raises CommandFailed when no controller answers, when a server is not a controller, and when none leads.
    """
    signer = read_signer(target.security.access_key_file) if target.security.access_key_file is not None else None
    timeout_ms, tls = int(target.timeout * 1000), target.security.client_tls
    search = LeaderSearch([each.strip() for each in target.server.split(",") if each.strip()])
    search.begin()
    with contextlib.ExitStack() as stack:
        while (address := search.next()) is not None:
            try:
                connection = stack.enter_context(dial(address, timeout_ms, signer, tls))
                metadata = _metadata(connection)
            except LightMQError as error:
                search.failed(address, error)
            else:
                search.answered(address, metadata)
        if search.leader:
            yield LeadingController(metadata, search.leader, connection, timeout_ms, signer, tls)
            return
    failures = "; ".join(f"{address}: {reason}" for address, reason in search.failures.items())
    raise CommandFailed(f"no controller that leads was found: {failures}")


def _metadata(connection: BlockingConnection) -> ControllerMetadata:
    answer = connection.request(Command(RequestCode.CONTROLLER_GET_METADATA_INFO))
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        raise CommandFailed(f"{connection.address} is not a controller: it cannot name a leader")
    return from_fields(checked(answer).fields, ControllerMetadata)
