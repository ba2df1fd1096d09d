"""Everything that answers requests around one open log: features, readers, registration, upkeep, ports.

Made when a broker runs alone, and by a member of a group each time it becomes the master; then it ends with that role
while the process and its port stay. Order of start: commits that a stop interrupted, timers, upkeep, and, once clients
can get the address, readers and registration; the stop is the reverse, the log last.

The VIP port, two below the first, is where RocketMQ clients before 4.5 send by default, newer ones when
`com.rocketmq.sendMessageWithVIPChannel` is set. RocketMQ keeps pulls off it; here it is the same server as the main
port: same handlers, access checks, TLS and limits, one count of connections.

`RoleGate` is the one handler behind the port of a member:

    master   the table of `broker.router`, appends only while enough replicas are in sync
    replica  `reads`: confirmed records, for requests that a replica may answer. Everything else: NOT_MASTER
             with the master's address; codes of RocketMQ get 14, which its clients retry elsewhere, and the same fields
    fenced   the same without an address; also a master after a pause, until it is known to be the master still
    coming   while the log of a new master opens: requests wait and are carried out by it
    leaving  a master that stops, until it has handed over: new requests wait, and get NOT_MASTER with the next address

Requests of controllers and operators are answered in every role (`always`). What waits to be confirmed when the
master's role ends has an unknown outcome: it is answered with code 14, the master's address, and outcome=unknown
(`giving_up`).
Invariants: nothing is accepted that could not be acknowledged; a VIP port that cannot be opened is logged and never
keeps the broker from starting. No connection is served in two roles: all of them are closed where one begins or ends,
and what was not answered by then fails at its sender like any lost connection. Loop thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker.access.replica import ReplicaUsers
from broker.broker import BrokerParts
from broker.metrics import ReaderMetrics
from broker.readers.messages import ReaderSettings
from broker.readers.pool import ReaderPool
from broker.roles.replica_reads import ReplicaReads
from broker.router import handlers
from broker.store.attached.store import in_order
from broker.store.errors import GivenUp, StoreError
from remoting import background, inprocess
from remoting.access.rights import LOCATE, RIGHTS, with_rights
from remoting.protocol.addresses import join_address
from remoting.protocol.bodies.controller_body import ACTING_FIELD, MASTER_ADDRESS_FIELD, MASTER_EPOCH_FIELD
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.server.authorizer import Authorizer
from remoting.server.peer import IntakeLimits
from remoting.server.router import PROVED_ATTRIBUTE, Access, NotOfferedNote, Router, Took
from remoting.server.server import RemotingServer
from remoting.transport.calls import answer
from remoting.transport.certificates import ServerTls
from remoting.transport.contracts import Dial, Handler, Peer
from remoting.transport.failures import OUTCOME_FIELD, OUTCOME_UNKNOWN
from runtime import logs

if TYPE_CHECKING:
    from broker.config import BrokerConfig, LimitsConfig
    from broker.store.log_store import LogStore
    from runtime.clock import Clock
    from runtime.metrics import Registry


UPKEEP_PAUSE_S = 0.02
"""Between two steps of the store's upkeep while it has more to do: retention keeps up, and requests are served."""


ANY_ADDRESS = ("", "0.0.0.0", "::")  # noqa: S104 - compared with, never bound to


class Serving:
    """A broker's working parts around an open store."""

    def __init__(
        self,
        config: BrokerConfig,
        store: LogStore,
        clock: Clock,
        registry: Registry,
        log: Any,
        connect: Dial,
        authorizer: Authorizer | None = None,
        may_answer: Callable[[], bool] = lambda: True,
    ) -> None:
        """`authorizer`: who may do what; without one every request is allowed. `may_answer`: see `BrokerParts`."""
        self.config = config
        self.store = store
        self.broker = BrokerParts(config, store, clock, registry, log, authorizer, connect, may_answer)
        self.readers: ReaderPool | None = None
        self.registration = self.broker.registration
        self._clock, self._registry, self._log = clock, registry, log
        self._upkeep: asyncio.Task[None] | None = None

    @property
    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return handlers(self.broker)

    def start(self) -> None:
        """Finish what a stop interrupted and begin to work; the address is not published yet."""
        self._make_readers()
        self.broker.start()
        self._upkeep = background.task(self._maintain(), "keeps up the log and the features of a master")

    def announce(self, host: str, port: int, controllers: tuple[str, ...]) -> None:
        """Clients reach us there: readers and registration begin."""
        self.tell_address(host, port)
        if self.readers is not None:
            self.readers.start()
        self.registration.start(controllers)
        link = self.registration.controllers
        if link is not None and any(controller != inprocess.ADDRESS for controller in controllers):
            self.broker.access.agree_with(link)

    def tell_address(self, host: str, port: int) -> None:
        """Where clients reach us."""
        identity = self.broker.tools.identity
        identity.host, identity.port = host, port

    async def leave(self) -> None:
        """Leave the controllers and end the readers."""
        await self.registration.stop()
        if self.readers is not None:
            await self.readers.stop()

    def settle(self, settled: Callable[[], None]) -> None:
        """Call it when all that was taken so far is confirmed or never will be."""
        self._flush()
        self.store.when_confirmed(self.store.end_position, lambda _error: settled())

    def give_up(self, reason: GivenUp) -> None:
        """Answer all that waits to be confirmed: the role has ended, others decide whether it stays."""
        self._flush()
        self.store.positions.give_up(reason)

    def _flush(self) -> None:
        self.broker.publishing.appender.flush()
        self.broker.groups.commits.flush()

    async def stop(self) -> None:
        """End the timers and the upkeep, flush and close the log; what is not confirmed fails."""
        await self.rest()
        self.store.close()

    async def rest(self) -> None:
        """End what works on the log, which stays open."""
        self.broker.stop()
        if self._upkeep is not None:
            self._upkeep.cancel()
            await asyncio.gather(self._upkeep, return_exceptions=True)
            self._upkeep = None

    def _make_readers(self) -> None:
        """Prepare the reader processes; they start once clients can get their address."""
        config, limits, broker, (level, json) = self.config, self.config.limits, self.broker, logs.in_use()
        tls = config.tls
        metrics = ReaderMetrics(self._registry, broker.tools.metrics)
        if not config.range_readers:
            return
        reason = readers_impossible()
        if reason:
            self._log.warning("range_readers_off", reason=reason)
            return
        settings = ReaderSettings(
            partly_readable_filters=config.partly_readable_filters == "thin",
            directory=str(config.data_directory.resolve()), host=config.host, port=config.range_reader_port,
            access_keys=config.access_keys, open_to_all=config.open_to_all,
            bound_signatures_only=config.bound_signatures_only, pull_bytes_max=limits.pull_bytes_max,
            frame_size_bytes_max=limits.frame_size_bytes_max, output_bytes_max=limits.connection_output_bytes_max,
            connections_max=limits.connections_max, log_level=level, log_json=json,
            access_list=_text(config.access_list), tls_mode=tls.mode, tls_certificate=_text(tls.certificate),
            tls_key=_text(tls.key), tls_client_ca=_text(tls.client_ca), tls_client_required=tls.client_required,
        )  # fmt: skip
        pool = self.readers = ReaderPool(config.range_readers, settings, metrics, self._log)
        broker.access.on_change(pool.use)
        identity = broker.tools.identity
        identity.readers_address = lambda: join_address(identity.host, pool.port) if pool.serving else None

    async def _maintain(self) -> None:
        interval_s = self.config.maintain_interval_ms / 1_000
        while True:
            await asyncio.sleep(interval_s)
            now_ms = self._clock.now_ms()
            await upkeep(self.store, now_ms, interval_s, self._log, partial(self.broker.maintain, now_ms))


async def upkeep(
    store: LogStore, now_ms: int, interval_s: float, log: Any, before: Callable[[], None] = lambda: None
) -> None:
    """One round of the store's upkeep, in steps with pauses for waiting requests."""
    try:
        before()
        for _ in range(int(interval_s / UPKEEP_PAUSE_S)):
            if not store.maintain(now_ms):
                break
            await asyncio.sleep(UPKEEP_PAUSE_S)
    except (StoreError, OSError) as error:
        log.error("upkeep_failed", error=str(error))


def _text(path: Path | None) -> str | None:
    """A path as text for a reader process, which may have another working directory."""
    return None if path is None else str(path.resolve())


def readers_impossible() -> str:
    """Why this machine cannot have reader processes; empty when it can."""
    return "" if in_order() else "this processor does not keep loads and stores in order"


def make_server(config: BrokerConfig, handler: Handler, access: Access) -> RemotingServer:
    """A broker's port, not open yet; `access`: which peers need no proof."""
    limits = config.limits
    return RemotingServer(
        handler,
        frame_size_bytes_max=limits.frame_size_bytes_max,
        output_bytes_max=limits.connection_output_bytes_max,
        connections_max=limits.connections_max,
        tls=ServerTls.of(config.tls),
        access=access,
        intake=intake_limits(limits),
    )


def intake_limits(limits: LimitsConfig) -> IntakeLimits:
    """What unfinished requests may cost, as configured."""
    return IntakeLimits(
        read_bytes_max=limits.read_bytes_max,
        unproven_bytes_max=limits.unproven_bytes_max,
        unproven_address_bytes_max=limits.unproven_address_bytes_max,
        unproven_connection_bytes_max=limits.unproven_connection_bytes_max,
        frame_deadline_ms=limits.frame_deadline_ms,
        frame_bytes_per_s_min=limits.frame_bytes_per_s_min,
        unproven_idle_ms=limits.unproven_idle_ms,
    )


def client_host(host: str) -> str:
    """The host published to clients: for a wildcard address, this machine's own."""
    return "127.0.0.1" if host in ANY_ADDRESS else host


BELOW = 2
"""How far below the port of a broker's address RocketMQ's clients expect its VIP port."""
AUTOMATIC = -1
"""Setting: two below the main port, if that port was chosen and is free."""
OFF = 0


def vip_port_of(config: BrokerConfig) -> int:
    """The port to open, `OFF` for none: not one that another part of this process is to have.

    Two below a main port that the system picked (0) may be any other program's, and firewalls know neither.
    """
    if config.vip_port != AUTOMATIC:
        return config.vip_port
    port = config.port - BELOW
    own = {config.admin_port, config.range_reader_port}
    if config.replication.enabled:
        own.add(config.replication.port)
    return port if port > 0 and port not in own else OFF


async def open_vip_port(server: RemotingServer, config: BrokerConfig, log: Any) -> int:
    """Let the running server listen at its VIP port too; that port, or `OFF` when there is none."""
    port = vip_port_of(config)
    if port == OFF:
        log.info("vip_port_off", main_port=config.port, setting=config.vip_port)
        return OFF
    try:
        return await server.listen_also(config.host, port)
    except OSError as error:
        log.warning(
            "vip_port_unavailable", port=port, problem=str(error),
            consequence="RocketMQ clients before 4.5 cannot send, unless their VIP channel is off",
        )  # fmt: skip
        return OFF


class ClientPort:
    """Where clients reach a broker that has ports of its own: its main port, and the VIP port beside it."""

    def __init__(self, config: BrokerConfig, handler: Handler, access: Access, log: Any) -> None:
        self.port = self.vip_port = 0
        """Both 0 until they are open; the VIP port stays 0 where there is none."""
        self.host = client_host(config.advertised_host or config.host)
        """The host published to clients."""
        self.server = make_server(config, handler, access)
        self._config, self._log = config, log

    @property
    def peers(self) -> Iterable[Peer]:
        """All connections."""
        return self.server.peers

    async def start(self) -> int:
        """Listen; the main port. Raises OSError when it is taken."""
        self.port = await self.server.start(self._config.host, self._config.port)
        self.vip_port = await open_vip_port(self.server, self._config, self._log)
        return self.port

    async def stop(self) -> None:
        """Close both ports and all connections."""
        await self.server.stop()

    def reload(self) -> None:
        """Read the certificate again; what is wrong is logged and the old one stays."""
        self.server.reload()


PRIVATE_CODES_FROM = 9_000
"""Codes of our own clients, which understand NOT_MASTER."""
PRIVATE_CODES_BEFORE = 10_000

APPENDS = frozenset(
    {
        Code.APPEND_MANY, Code.STAGE, Code.COMMIT_BATCH, Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2,
        Code.SEND_BATCH_MESSAGE, Code.CONSUMER_SEND_MSG_BACK, Code.COPY_MESSAGES,
    }
)  # fmt: skip
"""What brings messages, and is refused while too few replicas are in sync."""

Admission = Callable[[], Refused | None]
"""Why messages are not taken now; None when they are."""


HELD_MAX = 4_096
"""Requests that wait for a role to change; one more is refused at once."""
HELD_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of their bodies."""


class HeldRequests:
    """Requests that came while this broker ceases to be the master, or becomes it; none of them was begun."""

    def __init__(self, router: Router | None = None) -> None:
        self.router = router
        """What carried requests out before, None in no master."""
        self.requests: list[tuple[Peer, Command]] = []
        self._bytes = 0

    def take(self, peer: Peer, command: Command) -> bool:
        """Keep a request that waits for an answer; False when there is no room for it, or nobody waits."""
        size_bytes = self._bytes + len(command.body)
        if command.is_oneway or len(self.requests) >= HELD_MAX or size_bytes > HELD_BYTES_MAX:
            return False
        self._bytes = size_bytes
        self.requests.append((peer, command))
        return True


class RoleGate:
    """Answers a broker's peers in its present role."""

    def __init__(
        self,
        always: Mapping[int, Handler],
        access: Access,
        close_peers: Callable[[str], None],
        authorizer: Authorizer | None = None,
        broker_name: str = "",
    ) -> None:
        """`broker_name`: the group's, which `always` and NOT_MASTER are asked for."""
        self.users: ReplicaUsers | None = None
        """Answers requests about users while this broker is not the master; they check the right by themselves."""
        self.reads: ReplicaReads | None = None
        """Answers requests for records while this broker is not the master; they check the right by themselves."""
        self._authorizer = authorizer or Authorizer()
        self._broker_name = broker_name
        self._always = {
            code: self._asking(RIGHTS[code].action, handler) for code, handler in with_rights(always).items()
        }
        self._access = access
        self._close_peers = close_peers
        self._router: Router | None = None
        self.not_offered: NotOfferedNote | None = None
        """Called with each request for what is not offered."""
        self.took: Took | None = None
        """Called with the time of each handler."""
        self.watch: Callable[[Mapping[int, Handler]], Mapping[int, Handler]] = dict
        """Makes the table in use of the master's."""
        self._may_answer: Callable[[], bool] = _always
        self.master_address = ""
        self.master_epoch = 0
        self.refused = 0
        """Requests answered with NOT_MASTER."""
        self._held: HeldRequests | None = None

    def __call__(self, peer: Peer, command: Command) -> Command | None:
        """Answer one request; raises what the handler raises."""
        if self._router is not None and self._may_answer():
            return self._router(peer, command)
        if self._held is not None and self._may_wait(peer, command) and self._held.take(peer, command):
            return None
        challenge = self._access.admit(peer, command)
        if challenge is not None:
            return challenge
        handler = self._always.get(command.code)
        if self._held is None and handler is None and self.users is not None:
            handler = self.users.handlers().get(command.code)
        if self._held is None and handler is None and self.reads is not None:
            handler = self.reads.find(command)
        if handler is not None:
            return handler(peer, command)
        self._authorizer.authorize(peer, command, LOCATE, "")
        self.refused += 1
        return self._not_master(command)

    @property
    def serving(self) -> bool:
        """Whether requests are answered here."""
        return self._router is not None

    def serve(
        self,
        table: Mapping[int, Handler],
        epoch: int,
        admission: Admission | None = None,
        may_answer: Callable[[], bool] | None = None,
    ) -> None:
        """Answer requests by this table from now on, but while this broker does not know that it `may_answer`."""
        self._may_answer = may_answer or _always
        handlers = {**table, **self._always}
        if admission is not None:
            for code in APPENDS & set(handlers):
                handlers[code] = _admitted(handlers[code], admission)
        self.master_address, self.master_epoch = "", epoch
        self._router = Router(self.watch(handlers), access=self._access, not_offered=self.not_offered, took=self.took)
        if self._held is None:
            self._close_peers("this broker is the master now")
        self._release()

    def suspend(self, closing: str = "") -> None:
        """Carry out no request any more, and let new ones wait for `serve`, which carries them out, or for `refuse`.

        `closing`: why the present connections end, which are those of another role; without it they stay.
        """
        self._router, self._held = None, HeldRequests(self._router)
        if closing:
            self._close_peers(closing)

    def refuse(self, master_address: str, epoch: int) -> None:
        """Answer NOT_MASTER from now on; the address is empty when the master is unknown."""
        was_serving = self._router is not None or self._held is not None
        self._router = None
        self.master_address, self.master_epoch = master_address, epoch
        self._release()
        if was_serving:
            self._close_peers("this broker is not the master any more")

    def resume(self) -> None:
        """Go on as before `suspend`, with what waits first; nothing if the role has changed meanwhile."""
        if self._held is not None and self._held.router is not None:
            self._router = self._held.router
            self._release()

    def _release(self) -> None:
        """Answer what waits, in its order."""
        held, self._held = self._held, None
        for peer, command in held.requests if held is not None else ():
            answer(self, peer, command)

    def _may_wait(self, peer: Peer, command: Command) -> bool:
        """Whether it is a request for the master, of a peer that has proved who it is or need not."""
        return command.code not in self._always and (PROVED_ATTRIBUTE in peer.attributes or self._access.trusts(peer))

    def doubt(self) -> None:
        """Drop waiting requests unanswered: what they wait for may no longer be true."""
        self._close_peers("this broker stood still and does not know yet whether it is the master")

    def _asking(self, action: str, handler: Handler) -> Handler:
        """The handler, behind the check of the peer's rights."""

        def handle(peer: Peer, command: Command) -> Command | None:
            self._authorizer.authorize(peer, command, action, self._broker_name)
            return handler(peer, command)

        return handle

    def _not_master(self, command: Command) -> Command:
        private = PRIVATE_CODES_FROM <= command.code < PRIVATE_CODES_BEFORE
        acting = {ACTING_FIELD: "true"} if self.reads is not None and self.reads.is_acting else {}
        return command.reply(
            ResponseCode.NOT_MASTER if private else ResponseCode.SERVICE_NOT_AVAILABLE,
            f"this broker is not the master of its group, {_where(self.master_address)}",
            _fields(self.master_address, self.master_epoch) | acting,
        )


def _always() -> bool:
    return True


def giving_up(master_address: str, epoch: int) -> GivenUp:
    """The answer to requests that wait for a confirmation here; the master's address may be unknown."""
    return GivenUp(
        "this broker ceased to be the master of its group before the replicas had this: it may be kept or lost, "
        + _where(master_address),
        _fields(master_address, epoch) | {OUTCOME_FIELD: OUTCOME_UNKNOWN},
    )


def _where(master_address: str) -> str:
    return f"the master is {master_address}" if master_address else "no master is known now"


def _fields(master_address: str, epoch: int) -> dict[str, str]:
    return {MASTER_ADDRESS_FIELD: master_address, MASTER_EPOCH_FIELD: str(epoch or "")}


def _admitted(handler: Handler, admission: Admission) -> Handler:
    def handle(peer: Peer, command: Command) -> Command | None:
        refused = admission()
        if refused is not None:
            raise refused
        return handler(peer, command)

    return handle


def peers_closer(peers: Callable[[], Iterable[Peer]]) -> Callable[[str], None]:
    """What closes all connections of a port: queued answers go out first."""

    def close(reason: str) -> None:
        for peer in list(peers()):
            peer.close(reason)

    return close
