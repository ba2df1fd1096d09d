"""Composition root of a broker: one of its own, or a member of a group of brokers; decides nothing.

`lightmq broker` runs it alone on its own port. `lightmq up` passes `listen=False`, merges `handlers` with the
controller's on one port, reports that port by `announce`, and passes in an in-process connection to the controller.
Order of start: store (recovery), commits that a stop interrupted, port, registration; the stop is the reverse, so
nothing is accepted that could not be acknowledged. A member of a group (`config.replication`) opens its port first and
answers NOT_MASTER until the controllers have assigned its role (`broker.roles`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from broker.access.requests import access_of
from broker.acting.journal import warn_of_entries_left
from broker.broker import BrokerParts
from broker.config import BrokerConfig
from broker.readers.pool import ReaderPool
from broker.roles.durability import log_promise
from broker.roles.member import GroupMember
from broker.roles.serving import ClientPort, Serving, client_host
from broker.store.log.confirm import NEVER
from broker.store.log_store import LogStore
from remoting import background
from remoting.access.key_policy import KeyPolicy
from remoting.client.connection import signing_dial
from remoting.client.tls import ClientTls
from remoting.protocol.errors import LocalMisuse, NotOffered
from remoting.protocol.frames.commands import Command
from remoting.server.authorizer import Authorizer
from remoting.server.router import Access, NotOfferedNote, Router
from remoting.server.traced import traced
from remoting.tracing.spans import Tracer
from remoting.transport.contracts import Dial, Handler, Peer
from remoting.transport.turn import soon
from runtime.clock import Clock, SystemClock
from runtime.faults import FaultPoints
from runtime.files import WatchedFile
from runtime.logs import get_logger
from runtime.metrics import Registry, RequestTimes, UnsupportedRequests, declare_port_metrics


class BrokerApp:
    """One broker from its configuration to its stop."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock | None = None,
        registry: Registry | None = None,
        faults: FaultPoints | None = None,
        connect_controller: Dial | None = None,
        listen: bool = True,
        tracer: Tracer | None = None,
    ) -> None:
        """`tracer`: notes spans of sampled messages; without one there are none."""
        self.config = config
        self.registry = registry or Registry()
        self.port = 0
        self._clock = clock or SystemClock()
        self._faults = faults or FaultPoints()
        self._connect_controller = connect_controller or signing_dial(
            config.access_key_file, ClientTls.of(config.dial_tls)
        )
        watched = partial(traced, tracer=tracer, now_ns=self._clock.now_ns)
        self._watched: Callable[[Mapping[int, Handler]], Mapping[int, Handler]] | None = watched if listen else None
        """Makes the table of the port's handlers of this broker's; None: it opens no port."""
        self._log = get_logger("broker")
        self._clients: ClientPort | None = None
        self._serving: Serving | None = None
        self._member: GroupMember | None = None
        self._failure: asyncio.Future[Exception] | None = None
        partly = config.partly_readable_filters == "thin"
        self._policy = (
            None if config.access_list is None else KeyPolicy(config.access_list, self._log, WatchedFile, partly=partly)
        )
        self._watching: asyncio.Task[None] | None = None
        self.authorizer = Authorizer(self._policy)
        """Who may do what, in whatever role."""
        unsupported = UnsupportedRequests(self.registry, self._clock, self._log)
        self.not_offered = _noting(unsupported, self._clock, lambda: self.broker)
        """Counts requests for what is not offered, for a router that has this broker's handlers."""
        if config.replication.enabled:
            if not listen or not (config.controllers or config.replication.mode == "dledger"):
                raise LocalMisuse(
                    "broker.replication.enabled needs broker.controllers and a process of its own (lightmq broker)"
                )
            self._member = GroupMember(
                config, clock=self._clock, registry=self.registry, faults=self._faults,
                connect=self._connect_controller, access=self.access, authorizer=self.authorizer, failed=self._failed,
                log=self._log,
            )  # fmt: skip
            self._member.gate.not_offered = self.not_offered
            self._member.gate.took = RequestTimes(self.registry)
            self._member.gate.watch = watched

    @property
    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler; there once the broker has started."""
        if self._serving is None:
            raise LocalMisuse("the broker has not started")
        return self._serving.handlers

    @property
    def policy(self) -> KeyPolicy | None:
        """The rules in force; None without an access list."""
        return self._policy

    @property
    def access(self) -> Access:
        """Who may send requests, as configured."""
        return access_of(self.config, self._policy)

    @property
    def broker(self) -> BrokerParts | None:
        """What answers requests now; None before the start, and in a broker that is not the master of its group."""
        serving = self._present
        return None if serving is None else serving.broker

    @property
    def readers(self) -> ReaderPool | None:
        """The reader processes, where there are some."""
        return None if self._present is None else self._present.readers

    @property
    def _present(self) -> Serving | None:
        return self._member.serving if self._member is not None else self._serving

    async def start(self) -> int:
        """Recover the log, answer requests, register; returns the port (0 with `listen=False`).

        Raises:
            StoreError, OSError: the data directory cannot be used, or the port is taken.
        """
        loop = asyncio.get_running_loop()
        self._failure = loop.create_future()
        if self._policy is not None:
            self._watching = background.task(self._policy.keep_current(), "watches the access list")
        log_promise(self.config, self._log)
        if not (self.config.replication.enabled and self.config.replication.acting_master):
            warn_of_entries_left(self.config.data_directory, self._log)
        try:
            if self._member is not None:
                self.port = await self._member.start()
            else:
                await self._start_alone()
        except BaseException:
            await self.stop()
            raise
        return self.port

    async def _start_alone(self) -> None:
        loop = asyncio.get_running_loop()

        def schedule(function: Callable[[], None]) -> None:
            loop.call_soon_threadsafe(function)

        store = LogStore.open(
            self.config.data_directory,
            self.config.store,
            clock=self._clock,
            faults=self._faults,
            schedule=schedule,
            log=self._log,
            soon=soon,
        )
        store.when_confirmed(NEVER, self._failed)
        try:
            serving = Serving(
                self.config, store, self._clock, self.registry, self._log, self._connect_controller, self.authorizer
            )
        except BaseException:
            store.close()
            raise
        self._serving = serving
        serving.start()
        if self._watched is not None:
            await self._open_port(self._watched(serving.handlers), serving)

    def announce(self, host: str, port: int, controllers: tuple[str, ...]) -> None:
        """For `listen=False`: the address clients reach this broker at; registration begins."""
        assert self._serving is not None
        self.port = port
        self._serving.announce(client_host(host), port, controllers)

    async def until_failed(self) -> Exception:
        """Wait until the store has failed a write or a flush and return why.

        Nothing is acknowledged from then on; the process should end, so that a restart recovers from the disk.
        """
        assert self._failure is not None, "the broker has not started"
        return await asyncio.shield(self._failure)

    def _failed(self, error: Exception | None) -> None:
        if error is not None and self._failure is not None and not self._failure.done():
            self._failure.set_result(error)

    async def stop(self) -> None:
        """Leave the controllers, close the port, flush and close the log; more than once is fine."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
            self._watching = None
        if self._member is not None:
            await self._member.stop()
            return
        serving, clients = self._serving, self._clients
        self._serving = self._clients = None
        if serving is not None:
            await serving.leave()
        if clients is not None:
            await clients.stop()
        if serving is not None:
            await serving.stop()

    def reload(self) -> None:
        """Read the certificate again; what is wrong is logged and the old one stays."""
        if self._member is not None:
            self._member.reload()
        if self._clients is not None:
            self._clients.reload()

    def readiness(self) -> dict[str, bool]:
        """Part -> whether it can do its work: the log takes messages, it is registered with a controller."""
        if self._member is not None:
            return self._member.readiness()
        if self._serving is None:
            return {"store": False, "registration": False}
        state = self._serving.store.metrics()
        return {
            "store": not state["failed"] and not state["disk_full"],
            "registration": self._serving.registration.registered,
        }

    def unready_reason(self) -> str:
        """Why the broker cannot do its work now; empty when it can."""
        if self._member is not None:
            return self._member.unready_reason()
        if self._serving is None:
            return "not started"
        refusal = self._serving.store.refusal
        if refusal is not None:
            return str(refusal)
        if self.readiness()["registration"]:
            return ""
        failures = "; ".join(f"{address}: {why}" for address, why in self._serving.registration.failures.items())
        return f"no controller has registered this broker ({failures})"

    def degraded_reason(self) -> str:
        """What is wrong although the broker does its work: known damage of its log, a log that cannot be as small as it
        should be; empty when nothing is."""
        serving = self._present
        known = serving.store.quarantined if serving is not None else ()
        if not known:
            return "" if serving is None else serving.store.retention.over_limit()
        size = sum(each.end - each.start for each in known)
        places = "1 place" if len(known) == 1 else f"{len(known)} places"
        return (
            f"{size} bytes of the log are damaged in {places}; everything else is served. Run "
            f"lightmq store verify {self.config.data_directory}; see docs/howto/damaged-store.md"
        )

    def ready(self) -> bool:
        """True when every part is ready."""
        return all(self.readiness().values())

    def reader_ports(self) -> dict[str, int]:
        """Further ports by name, where there are such: of the reader processes, the VIP port, a member's replication
        port."""
        ports = {} if self.readers is None else {"readers": self.readers.port}
        clients = self._clients if self._member is None else self._member.clients
        if clients is not None and clients.vip_port:
            ports["vip"] = clients.vip_port
        return ports if self._member is None else {**ports, "replication": self._member.replication_port}

    def status(self) -> Mapping[str, Any]:
        """The picture for the administration page."""
        picture: dict[str, Any] = {} if self._member is None else {"member": self._member.status()}
        serving = self._present
        return {**serving.broker.status.picture(), **picture} if serving is not None else picture

    async def _open_port(self, table: Mapping[int, Handler], serving: Serving) -> None:
        access = self.access
        router = Router(table, access=access, not_offered=self.not_offered, took=RequestTimes(self.registry))
        self._clients = clients = ClientPort(self.config, router, access, self._log)
        declare_port_metrics(self.registry, clients.server)
        self.port = await clients.start()
        serving.announce(clients.host, self.port, self.config.controllers)


def _noting(unsupported: UnsupportedRequests, clock: Clock, broker: Callable[[], BrokerParts | None]) -> NotOfferedNote:
    """Counts a request for what is not offered, and by its client while this broker serves clients."""

    def note(peer: Peer, command: Command, refused: NotOffered) -> None:
        unsupported.record(peer, command, refused)
        present = broker()
        if present is not None:
            present.refusals.note(peer, command, refused, clock.now_ms())

    return note
