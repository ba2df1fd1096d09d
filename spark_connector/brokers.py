"""The way to the brokers: connections of one Python worker process, the masters of broker groups, and outages.

Connections. Spark keeps worker processes over batches, so a module-level pool saves a handshake per task. Invariant: a
connection goes back to the pool only when every request sent on it was answered; any failure closes it, and one that
the server has closed meanwhile is not lent again, so that a broker's restart costs no attempt.

Masters. `GroupMaster` is the shell of `remoting.client.master_link` for threads: connections come from the pool, and
the name servers are the controllers that are asked. Invariant: a name server that does not answer is passed over; if
none answers, the error names each address. That one of them does not know something is no answer as long as another
one is silent.

    find_groups ──▶ GroupMaster per group ──▶ lend, ask, ask_all
                         │ refused, lost or silent ──▶ failed ──▶ the next attempt follows the steps of its MasterLink

Groups. A group without a master is away (`KnownGroups.absent`), which is never the same as not there: who needs it
waits for it, and fails by its name. Which groups a topic is in, the name servers say, for those that are away too.

Outages. A broker that restarts, or a group that elects a new master, is back within seconds; the query's work waits,
and none of it is lost. Invariant: an outage is logged once; the clock runs only while nothing succeeds.

Thread rule: one task, or the driver-side process of the query; a lock guards the pool's lists where that does not hold.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

from remoting import clock
from remoting.client.blocking import BlockingConnection, dial_master
from remoting.client.master_link import MasterLink
from remoting.client.tls import ClientTls
from remoting.protocol.addresses import join_address, split_address
from remoting.protocol.bodies.controller_body import (
    AS_CONFIGURED_FIELD,
    MASTER_ID,
    WITH_REPLICAS_FIELD,
    BrokerData,
    ClusterInfo,
    QueueData,
    TopicRoute,
    decode_body,
)
from remoting.protocol.errors import LightMQError, LocalMisuse, Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.failures import TlsFailed, checked, not_master
from remoting.transport.signature import Signer
from spark_connector.errors import BrokerMoved, BrokerRefused, BrokerUnreachable, GroupAbsent, phrase
from spark_connector.options.option_table import ConnectionOptions

IDLE_PER_ADDRESS_MAX = 4
"""Idle connections kept per address and process; more are closed."""

NAME_SERVER = " (the option 'nameServer')"

LOG = logging.getLogger("lightmq.spark")
Answer = TypeVar("Answer")
Address = tuple[str, int]
MasterAddress = tuple[str, Address]
"""The name of a broker group at the name servers, empty for a broker that is addressed itself, and its last master."""
Manner = tuple[Signer | None, ClientTls | None]
"""The signer and the TLS settings of a connection."""


class Pool:
    """Idle connections by address."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._idle: dict[Address, list[tuple[Manner, BlockingConnection]]] = {}

    @contextmanager
    def borrow(
        self,
        address: Address,
        timeout_ms: int,
        *,
        signer: Signer | None = None,
        tls: ClientTls | None = None,
        while_silent: Callable[[], None] | None = None,
    ) -> Iterator[BlockingConnection]:
        """Lend a connection with this signer and TLS; it is closed when the block fails or leaves answers behind.

        `while_silent` is called now and then while no answer arrives; what it raises ends the wait.
        """
        manner = (signer, tls)
        connection = self._take(address, manner) or BlockingConnection(*address, timeout_ms, signer=signer, tls=tls)
        connection.while_silent = while_silent
        done = False
        try:
            yield connection
            done = True
        finally:
            connection.while_silent = None
            if done and not connection.closed and connection.in_flight == 0:
                self._give(address, manner, connection)
            else:
                connection.close()

    def forget(self, address: Address) -> None:
        """Close what is idle for an address: after one failure the others are probably as dead."""
        with self._lock:
            idle = self._idle.pop(address, [])
        for _, connection in idle:
            connection.close()

    def close(self) -> None:
        """Close every idle connection; the pool can be used again."""
        for address in list(self._idle):
            self.forget(address)

    def _take(self, address: Address, manner: Manner) -> BlockingConnection | None:
        with self._lock:
            if self._process != os.getpid():
                # A forked child must not use its parent's sockets.
                self._idle.clear()
                self._process = os.getpid()
            idle = self._idle.get(address, [])
            for at in reversed(range(len(idle))):
                if idle[at][0] != manner:
                    continue
                connection = idle.pop(at)[1]
                if not connection.stale:
                    return connection
                connection.close()
            return None

    def _give(self, address: Address, manner: Manner, connection: BlockingConnection) -> None:
        with self._lock:
            idle = self._idle.setdefault(address, [])
            if len(idle) < IDLE_PER_ADDRESS_MAX:
                idle.append((manner, connection))
                return
        connection.close()


POOL = Pool()


def repeated(once: Callable[[], Answer], address: Callable[[], Address], options: ConnectionOptions) -> Answer:
    """Do `once` until it succeeds, with the pauses and as often as the options allow.

    Raises BrokerUnreachable naming the address once the retries are used up; a refusal is not repeated.
    """
    failure: Exception | None = None
    for attempt in range(options.fetch_retries + 1):
        if attempt:
            time.sleep(options.fetch_retry_interval_ms / 1000)
        try:
            return once()
        except (LocalMisuse, BrokerRefused):
            raise
        except TlsFailed as refused:
            raise _untrusted(refused) from refused
        except (OSError, LightMQError) as caught:
            failure = caught
    raise unreachable(address(), failure, options)


def ask_servers(
    code: int,
    fields: Mapping[str, str],
    options: ConnectionOptions,
    read: Callable[[Address, Command], Answer | None],
) -> tuple[Answer | None, list[BrokerUnreachable]]:
    """Ask the name servers in turn until `read` finds an answer in a reply.

    Returns it, or None and what those that did not reply failed with. Each is tried once before one is tried again, so
    that those that are gone cost one attempt where another one answers.
    """
    silent: dict[Address, Exception | None] = dict.fromkeys(options.name_server)
    final: list[BrokerUnreachable] = []
    for attempt in range(options.fetch_retries + 1):
        if attempt:
            time.sleep(options.fetch_retry_interval_ms / 1000)
        for server in list(silent):
            try:
                reply = ask(server, Command(code, fields=dict(fields)), options)
            except LocalMisuse:
                raise
            except TlsFailed as refused:
                final.append(_untrusted(refused))
            except (OSError, LightMQError) as failure:
                silent[server] = failure
                continue
            else:
                if (found := read(server, reply)) is not None:
                    return found, []
            del silent[server]
        if not silent:
            break
    return None, [*final, *(unreachable(server, failure, options) for server, failure in silent.items())]


def ask(address: Address, command: Command, options: ConnectionOptions) -> Command:
    """Make one attempt to get an answer, of any code, from a server. Raises what it fails with."""
    try:
        with POOL.borrow(address, options.pull_timeout_ms, signer=options.signer, tls=options.client_tls) as connection:
            return connection.request(command)
    except (OSError, LightMQError):
        POOL.forget(address)
        raise


def _untrusted(refused: TlsFailed) -> BrokerUnreachable:
    """The error for a server whose certificate is not trusted: asking again does not change it."""
    return BrokerUnreachable(f"{refused} (the options 'tlsCaFile' and 'tlsServerName')")


def check(reply: Command, address: Address) -> Command:
    """Return a successful answer, else raise BrokerRefused with the broker's own words.

    Raises BrokerMoved when the broker is not the master of its group any more.
    """
    where = join_address(*address)
    if not_master(reply) is not None:
        raise BrokerMoved(f"the broker at {where} is not the master of its group: {reply.remark}")
    try:
        return checked(reply)
    except Refused as refusal:
        raise BrokerRefused(f"the broker at {where} refused: {refusal}", refusal.code) from None


def unreachable(address: Address, failure: Exception | None, options: ConnectionOptions) -> BrokerUnreachable:
    """Return the error for an address that did not answer after all attempts."""
    reason = "" if failure is None else phrase(failure).removesuffix(NAME_SERVER)
    attempts = f"{options.fetch_retries + 1} attempts" if options.fetch_retries else "1 attempt"
    return BrokerUnreachable(f"no answer from {join_address(*address)} after {attempts}: {reason}{NAME_SERVER}")


LOOK_TIMEOUT_MS = 2_000
"""Longest wait for a name server while a query runs."""
Options = TypeVar("Options", bound=ConnectionOptions)


def quick(options: Options) -> Options:
    """Options to ask each name server once and briefly, for work that is repeated if nobody answers."""
    return replace(options, pull_timeout_ms=min(options.pull_timeout_ms, LOOK_TIMEOUT_MS), fetch_retries=0)


def broker_groups(options: ConnectionOptions, group: str = "", *, replicas: bool = False) -> ClusterInfo:
    """The broker groups and their masters, by the first name server that answers and knows a master.

    With `replicas` those of the groups are among the addresses. A server that is no name server is taken to be the one
    broker itself, under the name "", unless a `group` is asked for by name, which it need not belong to. Raises
    BrokerUnreachable naming every address that was tried, GroupAbsent where groups are known and none has a master.
    """
    absent: list[str] = []
    without: list[str] = []

    def read(server: Address, reply: Command) -> ClusterInfo | None:
        where = join_address(*server)
        if reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            if not group:
                return ClusterInfo({"": BrokerData("", "", {MASTER_ID: where})})
            without.append(f"{where} is not a name server and cannot find broker group {group!r}")
            return None
        info = decode_body(check(reply, server).body, ClusterInfo)
        if any(data.master() for data in info.broker_addr_table.values()):
            return info
        absent.extend(info.absent())
        without.append(f"the name server at {where} knows no broker with a master: is one running?")
        return None

    fields = {WITH_REPLICAS_FIELD: "true"} if replicas else {}
    found, silent = ask_servers(RequestCode.GET_BROKER_CLUSTER_INFO, fields, options, read)
    if found is not None:
        return found
    failures = [*without, *map(phrase, silent)]
    if absent:
        raise GroupAbsent("; ".join([*failures, f"known are {', '.join(sorted(set(absent)))}"]))
    raise BrokerUnreachable("; ".join(failures))


def topic_queues(topic: str, options: ConnectionOptions) -> tuple[QueueData, ...]:
    """The queues of a topic at every group that has it, those that are away among them; empty when no group has it.

    Permissions are those that hold while a group has its master. That a name server does not know the topic proves
    nothing before every other one has said the same: raises BrokerUnreachable with those that did not answer.
    """

    def read(server: Address, reply: Command) -> tuple[QueueData, ...] | None:
        if reply.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        return tuple(decode_body(check(reply, server).body, TopicRoute).queue_datas)

    fields = {"topic": topic, "acceptStandardJsonOnly": "true", AS_CONFIGURED_FIELD: "true"}
    found, silent = ask_servers(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields, options, read)
    if found is None and silent:
        unheard = "; ".join(map(phrase, silent))
        raise BrokerUnreachable(f"whether the topic {topic!r} exists, not every name server has said: {unheard}")
    return found or ()


class GroupMaster:
    """The master of one broker group; `group` is empty where a broker is addressed itself."""

    def __init__(self, group: str, address: Address, options: ConnectionOptions) -> None:
        """`address` is where the master was last."""
        self.group = group
        self.address = address
        """Where the master was dialled last."""
        self._link = MasterLink(group, join_address(*address), asked="the name server")
        self._options = options
        self._quick = quick(options)

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
        """Return a successful answer of the master, else raise BrokerRefused, or BrokerMoved from a former master."""
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
        return broker_groups(self._quick, self._link.broker_name)

    def _check_silence(self) -> None:
        """Raise BrokerMoved while the master is silent and another one took its place.

        A broker that is suspended or cut off does not report it.
        """
        try:
            masters = _masters(self._groups())
        except (BrokerUnreachable, BrokerRefused):
            return  # no master is known at the moment: it may still be this one
        if "" not in masters and self.address not in masters.values():
            raise BrokerMoved(
                f"the broker at {join_address(*self.address)} is silent and no longer the master of its group"
            )


@dataclass(frozen=True, slots=True)
class KnownGroups:
    """The broker groups that the name servers know."""

    masters: dict[str, GroupMaster]
    """Of the groups that have one, ordered by name."""
    absent: tuple[str, ...] = ()
    """Groups that have none now, by name."""
    topics_unknown: frozenset[str] = frozenset()
    """Those of them whose topics the name server does not know."""
    mqtt: str = ""
    """The group that has MQTT; empty where no controller holds that."""

    def require_all(self, why: str) -> None:
        """Raise GroupAbsent while a group is away; `why`: what it may hold."""
        if self.absent:
            raise absence(self.absent, why)

    def with_topics(self, topics: Sequence[str], options: ConnectionOptions) -> tuple[str, ...]:
        """The groups that are away and have, or may have, queues of any of the topics. Raises BrokerUnreachable."""
        if not self.absent:
            return ()
        having = {one.broker_name for topic in topics for one in topic_queues(topic, options)}
        return tuple(name for name in self.absent if name in having | self.topics_unknown)


def absence(groups: Sequence[str], why: str) -> GroupAbsent:
    """The error for groups that are away; `why`: what they hold."""
    named = ", ".join(map(repr, groups))
    which = f"the broker group {named} has" if len(groups) == 1 else f"the broker groups {named} have"
    return GroupAbsent(f"{which} no master at the moment, and {why}; see: lightmq cluster status{NAME_SERVER}")


def find_groups(options: ConnectionOptions) -> KnownGroups:
    """All broker groups; raises BrokerUnreachable, GroupAbsent when none of them has a master."""
    info = broker_groups(options)
    masters = masters_at({group: (group, address) for group, address in _masters(info).items()}, options)
    return KnownGroups(masters, tuple(info.absent()), frozenset(info.topics_unknown), info.mqtt_group)


def find_masters(options: ConnectionOptions) -> dict[str, GroupMaster]:
    """The masters of the groups that have one now, which are not all groups there are; raises as `find_groups`."""
    return find_groups(options).masters


def masters_at(addresses: Mapping[str, MasterAddress], options: ConnectionOptions) -> dict[str, GroupMaster]:
    """Broker name → the master of its group, from the addresses where they were last."""
    return {name: GroupMaster(group, address, options) for name, (group, address) in addresses.items()}


def _masters(groups: ClusterInfo) -> dict[str, Address]:
    table = groups.broker_addr_table
    found = {name: table[name].master() for name in sorted(table)}
    return {name: split_address(address) for name, address in found.items() if address}


class Outage:
    """The present outage of one query, if there is one."""

    def __init__(self, options: ConnectionOptions) -> None:
        self._wait_ms = options.broker_wait_ms
        self._pause_ms = options.fetch_retry_interval_ms
        self._since: float | None = None

    def pause_after(self, failure: BrokerUnreachable, began_s: float | None = None) -> None:
        """Take in one failure: pause for a moment, or raise it when the outage has lasted too long.

        `began_s`: when the work that failed began, which may have taken long to fail.
        """
        now = clock.monotonic_s()
        if self._since is None:
            self._since = now if began_s is None else began_s
            LOG.warning("waiting up to %d ms for a broker: %s", self._wait_ms, phrase(failure))
        if (now - self._since) * 1000 >= self._wait_ms:
            raise BrokerUnreachable(f"{phrase(failure)}, for longer than the option 'brokerWaitMs' = {self._wait_ms}")
        time.sleep(self._pause_ms / 1000)

    def end(self) -> None:
        """Everything answers."""
        if self._since is not None:
            LOG.warning("the broker is back after %d ms", (clock.monotonic_s() - self._since) * 1000)
        self._since = None


def patiently(
    work: Callable[[], Answer], options: ConnectionOptions, awaited: type[BrokerUnreachable] = BrokerUnreachable
) -> Answer:
    """Do what may be repeated until a broker has answered, or was away for too long; only an error of the kind
    `awaited` is waited out."""
    outage = Outage(options)
    while True:
        began_s = clock.monotonic_s()
        try:
            answer = work()
        except awaited as failure:
            outage.pause_after(failure, began_s)
        else:
            outage.end()
            return answer
