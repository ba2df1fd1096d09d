"""The remoting connections of commands that read the log: name server first, then the broker groups it knows.

Invariant: everything opened here is closed when the ``with`` block ends.

The connection of ``lightmq cluster`` to the controller that leads, found from any of them.

Every controller names the leader (1005); requests that read or change something go to it. Invariant: connections opened
here are closed when the ``with`` block ends; a change of leader in between is reported as an error.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Annotated

import msgspec
from cyclopts import Parameter

from lightmq.cli.defaults import KEY_VARIABLE, SERVER_VARIABLE, ProfileName
from lightmq.cli.outcome import CommandFailed, CommandMisused
from lightmq.cli.times import Seconds
from remoting import clock
from remoting.client.blocking import BlockingConnection, checked, cluster, dial_master
from remoting.client.connection import read_signer, signer_of
from remoting.client.controllers import LeaderSearch
from remoting.client.master_link import Backoff, MasterLink
from remoting.client.tls import ClientTls
from remoting.protocol.bodies.controller_body import (
    ClusterInfo,
    ControllerMetadata,
    EpochCache,
    GroupState,
    SyncStateData,
    decode_body,
    from_fields,
)
from remoting.protocol.errors import LightMQError, Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.failures import ConnectionLost, RequestTimeout, not_master
from remoting.transport.signature import Signer

PATIENCE_MS = 20_000
"""How long a command searches for a master before it fails."""
PAUSE_MS = 200
"""Pause before each attempt to find it."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Security:
    """Credentials of a command, and what it expects of the servers' certificates."""

    access_key_file: Annotated[
        Path | None,
        Parameter(
            env_var="LIGHTMQ_ACCESS_KEY_FILE",
            help="File with one line key:secret, readable only by you. Signs requests; required by brokers on other "
            f"machines and brokers with an access list. Instead: the line itself in ${KEY_VARIABLE}.",
        ),
    ] = None
    access_key: Annotated[str, Parameter(env_var=KEY_VARIABLE, show=False)] = field(default="", repr=False)
    tls: Annotated[
        bool, Parameter(negative="", env_var="LIGHTMQ_TLS", help="Connect with TLS to name server and brokers.")
    ] = False
    tls_ca: Annotated[
        Path | None,
        Parameter(env_var="LIGHTMQ_TLS_CA", help="Trusted certificate authorities, PEM; default: those of the system."),
    ] = None
    tls_certificate: Annotated[
        Path | None,
        Parameter(env_var="LIGHTMQ_TLS_CERTIFICATE", help="Client certificate, PEM, if the servers require one."),
    ] = None
    tls_key: Annotated[
        Path | None,
        Parameter(env_var="LIGHTMQ_TLS_KEY", help="Private key of the certificate, PEM; default: in the same file."),
    ] = None
    tls_server_name: Annotated[
        str,
        Parameter(
            env_var="LIGHTMQ_TLS_SERVER_NAME", help="Name expected in the certificates; default: the host connected to."
        ),
    ] = ""
    tls_insecure: Annotated[
        bool, Parameter(negative="", help="Skip certificate verification (insecure). For tests only.")
    ] = False

    @property
    def signer(self) -> Signer | None:
        """Who signs the requests; None: nobody. Raises LocalMisuse for a key that may not be used."""
        if self.access_key_file is not None:
            return read_signer(self.access_key_file)
        return signer_of(self.access_key, f"${KEY_VARIABLE}, or the profile's key,") if self.access_key else None

    @property
    def client_tls(self) -> ClientTls | None:
        """How to connect with TLS; None without."""
        if not self.tls:
            return None
        return ClientTls(
            self.tls_ca, self.tls_certificate, self.tls_key, self.tls_server_name, verify=not self.tls_insecure
        )


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ServerTarget:
    """Where the name server answers, and how to reach it."""

    server: Annotated[
        str,
        Parameter(
            name=["--server", "-s"],
            env_var=SERVER_VARIABLE,
            help="Name server (controller) as host:port; several with commas.",
        ),
    ] = "127.0.0.1:9876"
    profile: ProfileName = ""
    timeout: Annotated[Seconds, Parameter(help="How long to wait for an answer: 10, 500ms, 2m.")] = 10.0
    security: Security = Security()


ROAD = "lightmq"


class Broker:
    """One broker group's master and the connection to it."""

    def __init__(self, name: str, address: str, target: ServerTarget, signer: Signer | None = None) -> None:
        """Connect. Raises as `dial`."""
        self.name = name
        self.address = address
        self._link = MasterLink(name, address, asked=target.server)
        self._target = target
        self._signer = signer
        self.connection = self._dial(address)

    def ask(self, command: Command) -> Command:
        """A request and its answer. Raises Refused when the broker refuses it."""
        command.fields.setdefault("road", ROAD)  # what the broker's record of acts says about the tool
        return checked(self.connection.request(command))

    def ask_again(self, code: int, body: bytes, fields: Mapping[str, str] | None = None) -> Command:
        """`ask` for a repeatable request: a lost connection is made again, to the group's master at that time.

        Raises ConnectionLost or RequestTimeout when there was none for too long.
        """
        backoff = Backoff(PAUSE_MS, PAUSE_MS, patience_ms=PATIENCE_MS)
        while True:
            try:
                answer = self.connection.request(Command(code, fields=dict(fields or {}), body=body))
                refusal = not_master(answer)
                if refusal is None:
                    return checked(answer)
                self._link.refused(refusal, self.address)
                failure: LightMQError = refusal
            except (ConnectionLost, RequestTimeout) as error:
                failure = error
            self.connection.close()
            pause_ms = backoff.failed(clock.monotonic_s() * 1000)
            if pause_ms is None:
                raise failure
            Event().wait(pause_ms / 1000)
            with contextlib.suppress(ConnectionLost, RequestTimeout, Refused):
                self.connection = dial_master(self._link, self._dial, lambda: _known(self._target, self._signer))
                self.address = self.connection.address

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def _dial(self, address: str) -> BlockingConnection:
        return dial(address, _timeout_ms(self._target), self._signer, self._target.security.client_tls)


def connector(target: ServerTarget) -> Callable[[str], BlockingConnection]:
    """What connects to an address as to a broker. Raises LocalMisuse for a key file that may not be used."""
    signer, tls = target.security.signer, target.security.client_tls
    return lambda address: dial(address, _timeout_ms(target), signer, tls)


def cluster_info(target: ServerTarget, *, replicas: bool = False) -> ClusterInfo:
    """The broker groups that the name servers know, with their `replicas` if wanted. Raises as `brokers`."""
    return _known(target, target.security.signer, replicas=replicas)


def dial(
    address: str, timeout_ms: int, signer: Signer | None = None, tls: ClientTls | None = None
) -> BlockingConnection:
    """A connection to ``host:port``. Raises CommandMisused when that is no address, Unreachable."""
    try:
        return BlockingConnection.dial(address, timeout_ms, signer=signer, tls=tls)
    except ValueError as error:
        raise CommandMisused(str(error)) from error


def _timeout_ms(target: ServerTarget) -> int:
    return int(target.timeout * 1000)


def _known(target: ServerTarget, signer: Signer | None, *, replicas: bool = False) -> ClusterInfo:
    """The broker groups known to the first name server that answers. Raises the failure of the last one."""
    addresses = target.server.split(",")
    for address in addresses:
        try:
            with dial(address.strip(), _timeout_ms(target), signer, target.security.client_tls) as server:
                return cluster(server, replicas=replicas)
        except (ConnectionLost, RequestTimeout) as error:
            if address is not addresses[-1]:
                continue
            if type(error) is ConnectionLost:  # it can be reached, and hung up
                raise CommandFailed(f"{error}; is it the remoting port of `lightmq up` or a controller?") from error
            raise
    raise AssertionError("no address was tried")


@contextlib.contextmanager
def brokers(target: ServerTarget) -> Iterator[list[Broker]]:
    """Connections to the masters of all broker groups, by name; a group that has none now is named in a warning.

    Raises CommandFailed when there is none, LocalMisuse for a key file that may not be used.
    """
    signer = target.security.signer
    with contextlib.ExitStack() as stack:
        opened, info = [], _known(target, signer)
        for name, data in sorted(info.broker_addr_table.items()):
            address = data.master()
            if address is not None:
                opened.append(stack.enter_context(contextlib.closing(Broker(name, address, target, signer))))
        if opened and info.absent():
            away = ", ".join(info.absent())
            sys.stderr.write(f"warning: {away}: no master can be asked, what only these groups hold is missing\n")
        if not opened:
            raise CommandFailed(f"{target.server} knows no broker with a master; is one running and registered there?")
        yield opened


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
    is_member: bool = False
    """It is no controller but a broker of a group that elects its master itself, which answers for its group."""

    def ask(self, command: Command) -> Command:
        """A request and its answer. Raises Refused, and CommandFailed when this controller no longer leads."""
        command.fields.setdefault("road", ROAD)
        try:
            return checked(self.connection.request(command))
        except Refused as refused:
            if refused.code == ResponseCode.CONTROLLER_NOT_LEADER:
                raise CommandFailed(f"the controllers are electing a leader; try again ({refused})") from refused
            raise

    def groups(self, name: str = "") -> dict[str, GroupState]:
        """Broker groups by name, one or all, those that elect their masters themselves among them.

        Raises CommandFailed when there is no such group.
        """
        body = msgspec.json.encode([name] if name else [])
        answer = self.ask(Command(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=body))
        table = decode_body(answer.body, SyncStateData).replicas_info_table
        if self.is_member:  # only the master knows who has everything
            asked = [state.master_address for state in table.values()]
        else:
            asked = [address for each, address in self.lone(table).items() if name in ("", each)]
        for address in asked:
            table |= self._elected_groups(address or "")
        if name and name not in table:
            known = ", ".join(sorted(self.groups())) or "none"
            raise CommandFailed(f"the controllers know no broker group {name!r}; known: {known}")
        return dict(sorted(table.items()))

    def _elected_groups(self, address: str) -> dict[str, GroupState]:
        """The group of a broker, as that one knows it, if its brokers elect their master themselves; else nothing."""
        try:
            answer = self.ask_broker(address, Command(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=b"[]"))
        except (LightMQError, OSError):
            return {}
        table = decode_body(answer.body, SyncStateData).replicas_info_table
        return {name: state for name, state in table.items() if state.elects_itself}

    def ask_broker(self, address: str, command: Command) -> Command:
        """A request to a broker, and its answer. Raises LightMQError."""
        command.fields.setdefault("road", ROAD)
        with dial(address, self.timeout_ms, self.signer, self.tls) as broker:
            return checked(broker.request(command))

    def cluster_of(self, group: str) -> str:
        """The cluster that a group's brokers are registered under."""
        if self.is_member:
            return CLUSTER_DEFAULT
        answer = self.ask(Command(RequestCode.GET_BROKER_CLUSTER_INFO))
        known = decode_body(answer.body, ClusterInfo).broker_addr_table.get(group)
        return known.cluster if known is not None else CLUSTER_DEFAULT

    def lone(self, groups: Iterable[str]) -> dict[str, str]:
        """Addresses by name of the registered brokers that belong to none of these groups: each runs alone."""
        if self.is_member:
            return {}
        answer = self.ask(Command(RequestCode.GET_BROKER_CLUSTER_INFO))
        known = decode_body(answer.body, ClusterInfo).broker_addr_table
        masters = {name: data.master() for name, data in sorted(known.items()) if name not in groups}
        return {name: address for name, address in masters.items() if address is not None}

    def absent(self) -> list[str]:
        """Names of the broker groups that are known and have no master now."""
        if self.is_member:
            return []
        return decode_body(self.ask(Command(RequestCode.GET_BROKER_CLUSTER_INFO)).body, ClusterInfo).absent()

    def mqtt_group(self) -> str:
        """The name of the group that has MQTT; empty where no controller holds it."""
        if self.is_member:
            return ""
        return decode_body(self.ask(Command(RequestCode.GET_BROKER_CLUSTER_INFO)).body, ClusterInfo).mqtt_group

    def master_of(self, group: str) -> str:
        """The address of a group's master; empty while it has none."""
        table = decode_body(self.ask(Command(RequestCode.GET_BROKER_CLUSTER_INFO)).body, ClusterInfo).broker_addr_table
        return (table[group].master() or "") if group in table else ""

    def forget(self, group: str) -> dict[str, str]:
        """Have every controller forget a group that is away; by address why one did not."""
        failed = {}
        others = [each.partition("-")[2] for each in self.metadata.peers.split(";") if each]
        for address in dict.fromkeys([self.address, *others]):
            fields = {"brokerName": group, "road": ROAD}
            try:
                with dial(address, self.timeout_ms, self.signer, self.tls) as controller:
                    checked(controller.request(Command(RequestCode.FORGET_GROUP, fields=fields)))
            except LightMQError as error:
                failed[address] = str(error)
        return failed

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

    A broker of a group that elects its master itself takes the place of one (`is_member`).

    Raises CommandFailed when no controller answers, when a server is neither, and when none leads.
    """
    signer = target.security.signer
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
                continue
            if metadata is None:
                nothing = ControllerMetadata("")
                yield LeadingController(nothing, address, connection, timeout_ms, signer, tls, is_member=True)
                return
            search.answered(address, metadata)
        if search.leader:
            assert metadata is not None
            yield LeadingController(metadata, search.leader, connection, timeout_ms, signer, tls)
            return
    failures = "; ".join(f"{address}: {reason}" for address, reason in search.failures.items())
    raise CommandFailed(f"no controller that leads was found: {failures}")


def controllers(target: ServerTarget) -> dict[str, str]:
    """The address of each controller, by name, as the controllers know one another. Raises as `leading_controller`."""
    with leading_controller(target) as leader:
        named = [each.partition("-") for each in leader.metadata.peers.split(";") if each]
        lone = {leader.metadata.controller_leader_id or "": leader.address}
        return {name: address for name, _, address in named} or lone


def _is_member(connection: BlockingConnection) -> bool:
    """Whether it is a broker of a group that elects its master itself."""
    answer = connection.request(Command(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=b"[]"))
    if answer.code != 0:
        return False
    return any(state.elects_itself for state in decode_body(answer.body, SyncStateData).replicas_info_table.values())


def _metadata(connection: BlockingConnection) -> ControllerMetadata | None:
    answer = connection.request(Command(RequestCode.CONTROLLER_GET_METADATA_INFO))
    if answer.code != 0 and _is_member(connection):
        return None
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        raise CommandFailed(f"{connection.address} is not a controller: it cannot name a leader")
    return from_fields(checked(answer).fields, ControllerMetadata)
