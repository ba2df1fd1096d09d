"""Which broker groups there are and who their masters are, asked of the name servers.

Invariant: a name server that does not answer is passed over, none that answers is an error naming each address. Thread
rule: one task, or the driver-side process of the query.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

from remoting.client.blocking import BlockingConnection, dial_master
from remoting.client.master_link import MasterLink
from remoting.protocol.bodies.route_body import MASTER_ID, BrokerData, ClusterInfo, decode_body
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.failures import split_address
from spark_connector.brokers.connections import POOL, Address, ask, check, say_address
from spark_connector.errors import BrokerMoved, BrokerRefused, BrokerUnreachable, phrase
from spark_connector.options.option_table import ConnectionOptions

LOOK_TIMEOUT_MS = 2_000
"""Longest wait for a name server while a master is silent."""


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
            return ClusterInfo({"": BrokerData("", "", {MASTER_ID: say_address(server)})})
        info = decode_body(check(reply, server).body, ClusterInfo)
        if any(data.master() for data in info.broker_addr_table.values()):
            return info
        failures.append(f"the name server at {say_address(server)} knows no broker with a master: is one running?")
    raise BrokerUnreachable("; ".join(failures))


def find_brokers(options: ConnectionOptions) -> dict[str, Address]:
    """Broker group → address of its master, ordered by name; raises BrokerUnreachable."""
    table = broker_groups(options).broker_addr_table
    masters = {name: table[name].master() for name in sorted(table)}
    return {name: split_address(address) for name, address in masters.items() if address}


def lend_master(link: MasterLink, options: ConnectionOptions, lent: ExitStack) -> BlockingConnection:
    """Make one attempt to reach the master of a group; `lent` gives the connection back to the pool.

    Raises what the attempt failed with.
    """

    def dial(address: str) -> BlockingConnection:
        at = split_address(address)
        lending = POOL.borrow(
            at,
            options.pull_timeout_ms,
            signer=options.signer,
            tls=options.client_tls,
            while_silent=watch_master(at, options),
        )
        return lent.enter_context(lending)

    def ask_groups() -> ClusterInfo:
        groups = broker_groups(options)
        alone = groups.broker_addr_table.get("")
        return groups if alone is None else ClusterInfo({link.broker_name: alone})

    return dial_master(link, dial, ask_groups)


def watch_master(address: Address, options: ConnectionOptions) -> Callable[[], None]:
    """What to call while the master at an address is silent: raises BrokerMoved when another one took its place.

    A broker that stands still, or is cut off, says nothing of that itself.
    """
    quick = replace(options, pull_timeout_ms=min(options.pull_timeout_ms, LOOK_TIMEOUT_MS), fetch_retries=0)

    def check() -> None:
        try:
            masters = find_brokers(quick)
        except (BrokerUnreachable, BrokerRefused):
            return  # nobody knows a master now: it may still be this one
        if "" not in masters and address not in masters.values():
            raise BrokerMoved(f"the broker at {say_address(address)} is silent and no longer the master of its group")

    return check


def ask_master(address: Address, command: Command, options: ConnectionOptions) -> Command:
    """`ask` a master, for as long as it is the master."""
    return ask(address, command, options, while_silent=watch_master(address, options))
