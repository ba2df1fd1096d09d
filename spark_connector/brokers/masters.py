"""The broker groups and their masters: which there are, and how each is found, dialled and asked.

    find_masters ──▶ GroupMaster per group ──▶ lend, ask, ask_all
                         │ refused, lost or silent ──▶ failed ──▶ the next attempt follows the steps of its MasterLink

`GroupMaster` is the shell of `remoting.client.master_link` for threads: connections come from the pool, and the name
servers are the controllers that are asked. Invariant: a name server that does not answer is passed over; if none
answers, the error names each address. Thread rule: one task, or the driver-side process of the query.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from remoting.client.blocking import BlockingConnection, dial_master
from remoting.client.master_link import MasterLink
from remoting.protocol.bodies.route_body import MASTER_ID, BrokerData, ClusterInfo, decode_body
from remoting.protocol.errors import LightMQError
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.failures import join_address, not_master, split_address
from spark_connector.brokers.connections import POOL, Address, ask, check, repeated
from spark_connector.errors import BrokerMoved, BrokerRefused, BrokerUnreachable, phrase
from spark_connector.options.option_table import ConnectionOptions

LOOK_TIMEOUT_MS = 2_000
"""Longest wait for a name server while a master is lost or silent."""


def broker_groups(options: ConnectionOptions) -> ClusterInfo:
    """The broker groups and their masters, by the first name server that answers and knows a master.

    A server that is no name server is taken to be the one broker itself, under the name "". Raises BrokerUnreachable
    naming every address that was tried.
    """
    failures = []
    for server in options.name_server:
        try:
            reply = ask(server, Command(RequestCode.GET_BROKER_CLUSTER_INFO), options, refusal_is_error=False)
        except BrokerUnreachable as failure:
            failures.append(phrase(failure))
            continue
        if reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return ClusterInfo({"": BrokerData("", "", {MASTER_ID: join_address(*server)})})
        info = decode_body(check(reply, server).body, ClusterInfo)
        if any(data.master() for data in info.broker_addr_table.values()):
            return info
        failures.append(f"the name server at {join_address(*server)} knows no broker with a master: is one running?")
    raise BrokerUnreachable("; ".join(failures))


class GroupMaster:
    """The master of one broker group; `group` is empty where a broker is addressed itself."""

    def __init__(self, group: str, address: Address, options: ConnectionOptions) -> None:
        """`address` is where the master was last."""
        self.group = group
        self.address = address
        """Where the master was dialled last."""
        self._link = MasterLink(group, join_address(*address), asked="the name server")
        self._options = options
        self._quick = replace(options, pull_timeout_ms=min(options.pull_timeout_ms, LOOK_TIMEOUT_MS), fetch_retries=0)

    def lend(self, lent: ExitStack) -> BlockingConnection:
        """Make one attempt to reach the master; `lent` gives the connection back to the pool.

        Raises what the attempt failed with.
        """

        def dial(address: str) -> BlockingConnection:
            self.address = split_address(address)
            lending = POOL.borrow(
                self.address,
                self._options.pull_timeout_ms,
                signer=self._options.signer,
                tls=self._options.client_tls,
                while_silent=self._check_silence,
            )
            return lent.enter_context(lending)

        return dial_master(self._link, dial, self._groups)

    def check(self, reply: Command) -> Command:
        """Return the master's answer if it says yes, else raise BrokerRefused, or BrokerMoved from a former master."""
        self._note(reply)
        return check(reply, self.address)

    def failed(self) -> None:
        """The last attempt failed: the next one dials and asks the name servers in turn."""
        POOL.forget(self.address)
        self._link.doubt(join_address(*self.address))

    def ask(self, command: Command, *, refusal_is_error: bool = True) -> Command:
        """Send one request that may safely be repeated, to whichever broker is the master, and return its answer.

        Raises BrokerUnreachable once the retries are used up, and BrokerRefused for a refusal, unless the caller
        wants to read the code itself.
        """
        (reply,) = repeated(lambda: self._attempt([command]), lambda: self.address, self._options)
        return check(reply, self.address) if refusal_is_error else reply

    def ask_all(self, commands: Sequence[Command]) -> list[Command]:
        """The answers, whatever their codes, to repeatable requests that are all under way at once. Raises as `ask`."""
        return repeated(lambda: self._attempt(commands), lambda: self.address, self._options)

    def _attempt(self, commands: Sequence[Command]) -> list[Command]:
        try:
            with ExitStack() as lent:
                connection = self.lend(lent)
                sent = [connection.send(command) for command in commands]
                replies = [connection.receive(one) for one in sent]
            for reply in replies:
                self._note(reply)
        except (OSError, LightMQError):
            self.failed()
            raise
        return replies

    def _note(self, reply: Command) -> None:
        """Raise BrokerMoved for the answer of a former master; it may name the present one."""
        moved = not_master(reply)
        if moved is not None:
            self._link.refused(moved, join_address(*self.address))
            check(reply, self.address)

    def _groups(self) -> ClusterInfo:
        groups = broker_groups(self._quick)
        alone = groups.broker_addr_table.get("")
        return groups if alone is None else ClusterInfo({self._link.broker_name: alone})

    def _check_silence(self) -> None:
        """Raise BrokerMoved while the master is silent and another one took its place.

        A broker that is suspended or cut off does not say so itself.
        """
        try:
            masters = _masters(broker_groups(self._quick))
        except (BrokerUnreachable, BrokerRefused):
            return  # no master is known at the moment: it may still be this one
        if "" not in masters and self.address not in masters.values():
            raise BrokerMoved(
                f"the broker at {join_address(*self.address)} is silent and no longer the master of its group"
            )


def find_masters(options: ConnectionOptions) -> dict[str, GroupMaster]:
    """Broker group → its master, ordered by name; raises BrokerUnreachable."""
    return masters_at(_masters(broker_groups(options)), options)


def masters_at(addresses: Mapping[str, Address], options: ConnectionOptions) -> dict[str, GroupMaster]:
    """Broker group → its master, from the addresses where they were last."""
    return {group: GroupMaster(group, address, options) for group, address in addresses.items()}


def _masters(groups: ClusterInfo) -> dict[str, Address]:
    table = groups.broker_addr_table
    found = {name: table[name].master() for name in sorted(table)}
    return {name: split_address(address) for name, address in found.items() if address}
