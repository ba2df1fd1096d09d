"""Composition root of a broker: builds the store, the views, the handlers, the port; decides nothing.

`lightmq broker` runs it alone on its own port. `lightmq up` passes `listen=False`, merges `handlers` with the
controller's on one port and tells that port by `announce`, and hands in an in-process connection to the controller.
Order of start: store (recovery), commits that a stop interrupted, port, registration; the stop is the reverse, so
nothing is accepted that could not be acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from broker.api.access import Authorizer, make_access
from broker.api.context import Broker
from broker.api.direct import DirectAppends
from broker.api.router import handlers
from broker.api.topic_list import status
from broker.api.topic_policy import TopicPolicy
from broker.config import BrokerConfig
from broker.metrics import ReaderMetrics
from broker.readers.messages import ReaderSettings
from broker.readers.pool import ReaderPool
from broker.registration import Connect, Registration
from broker.store.attached.tail_view import in_order
from broker.store.confirm import NEVER
from broker.store.errors import StoreError
from broker.store.log_store import LogStore
from remoting.client.key_file import signing_dial
from remoting.client.tls import ClientTls
from remoting.protocol.errors import LightMQError, LocalMisuse
from remoting.server.access import Access
from remoting.server.router import Router
from remoting.server.server import RemotingServer
from remoting.server.tls import ServerTls
from remoting.transport.contracts import Handler
from remoting.transport.failures import join_address
from remoting.transport.turn import soon
from runtime import logs
from runtime.clock import Clock, SystemClock
from runtime.faults import FaultPoints
from runtime.logs import get_logger
from runtime.metrics import Registry

UPKEEP_PAUSE_S = 0.02
"""Between two steps of the store's upkeep while it has more to do: retention keeps up, and requests are served."""
ANY_ADDRESS = ("", "0.0.0.0", "::")  # noqa: S104 - compared with, never bound to


class BrokerApp:
    """One broker from its configuration to its stop."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock | None = None,
        registry: Registry | None = None,
        faults: FaultPoints | None = None,
        connect_controller: Connect | None = None,
        listen: bool = True,
    ) -> None:
        self.config = config
        self.registry = registry or Registry()
        self.port = 0
        self.broker: Broker | None = None
        self._clock = clock or SystemClock()
        self._faults = faults or FaultPoints()
        self._connect_controller = connect_controller or signing_dial(
            config.access_key_file, ClientTls.of(config.dial_tls)
        )
        self._listen = listen
        self._log = get_logger("broker")
        self._store: LogStore | None = None
        self._server: RemotingServer | None = None
        self._registration: Registration | None = None
        self._upkeep: asyncio.Task[None] | None = None
        self._failure: asyncio.Future[Exception] | None = None
        self._topic_policy: TopicPolicy | None = None
        self.readers: ReaderPool | None = None

    @property
    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler; there once the broker has started."""
        return handlers(self._running)

    @property
    def direct(self) -> DirectAppends:
        """What a proxy of the same process hands its publishes to."""
        return DirectAppends(self._running)

    @property
    def access(self) -> Access:
        """Who may send requests, as configured."""
        return make_access(
            self.config.access_keys,
            open_to_all=self.config.open_to_all,
            keys_count=self.config.access_list is not None,
        )

    async def start(self) -> int:
        """Recover the log, answer requests, register; returns the port (0 with `listen=False`).

        Raises:
            StoreError, OSError: the data directory cannot be used, or the port is taken.
        """
        loop = asyncio.get_running_loop()

        def schedule(function: Callable[[], None]) -> None:
            loop.call_soon_threadsafe(function)

        self._store = LogStore.open(
            self.config.data_directory,
            self.config.store,
            clock=self._clock,
            faults=self._faults,
            schedule=schedule,
            log=self._log,
            soon=soon,
        )
        self._failure = loop.create_future()
        self._store.when_confirmed(NEVER, self._store_failed)
        try:
            self.broker = Broker(self.config, self._store, self._clock, self.registry, self._log)
            self._guard_topics(self.broker)
            self._finish_commits(self.broker)
            self._make_readers(self.broker)
            self.broker.delay_timer.start()
            if self._listen:
                await self._open_port()
            self._upkeep = loop.create_task(self._maintain())
            self._registration = Registration(self.broker, make_connection=self._connect_controller)
            if self._listen:
                self._registration.start(self.config.controllers)
        except BaseException:
            await self.stop()
            raise
        return self.port

    def announce(self, host: str, port: int, controllers: tuple[str, ...]) -> None:
        """For `listen=False`: the address clients reach this broker at; registration begins."""
        self._tell_address(host, port)
        assert self._registration is not None
        self._registration.start(controllers)

    async def until_failed(self) -> Exception:
        """Wait until the store has failed a write or a flush and return why.

        Nothing is acknowledged from then on; the process should end, so that a restart looks at what is on the disk.
        """
        assert self._failure is not None, "the broker has not started"
        return await asyncio.shield(self._failure)

    def _store_failed(self, error: Exception | None) -> None:
        if error is not None and self._failure is not None and not self._failure.done():
            self._failure.set_result(error)

    async def stop(self) -> None:
        """Leave the controllers, close the port, flush and close the log; more than once is fine."""
        if self._registration is not None:
            await self._registration.stop()
        if self.readers is not None:
            await self.readers.stop()
        if self._server is not None:
            await self._server.stop()
        if self.broker is not None:
            self.broker.delay_timer.stop()
            self.broker.will_room.stop()
            self.broker.handovers.stop()
        if self._upkeep is not None:
            self._upkeep.cancel()
            await asyncio.gather(self._upkeep, return_exceptions=True)
        if self._store is not None:
            self._store.close()
        self._server = self._store = self._registration = self._upkeep = self.readers = None

    def reload(self) -> None:
        """Read the certificate again; what is wrong is logged and the old one stays."""
        if self._server is not None:
            self._server.reload()

    def readiness(self) -> dict[str, bool]:
        """Part -> whether it can do its work: the log takes messages, a controller knows us."""
        if self._store is None:
            return {"store": False, "registration": False}
        state = self._store.metrics()
        return {
            "store": not state["failed"] and not state["disk_full"],
            "registration": self._registration is not None and self._registration.registered,
        }

    def unready_reason(self) -> str:
        """Why the broker cannot do its work now; empty when it can."""
        if self._store is None:
            return "not started"
        refusal = self._store.refusal
        if refusal is not None:
            return str(refusal)
        return "" if self.readiness()["registration"] else "no controller has registered this broker"

    def ready(self) -> bool:
        """True when every part is ready."""
        return all(self.readiness().values())

    def reader_ports(self) -> dict[str, int]:
        """The port of the reader processes under its name; empty without them."""
        return {} if self.readers is None else {"readers": self.readers.port}

    def status(self) -> Mapping[str, Any]:
        """The picture for the administration page."""
        return status(self._running) if self.broker is not None and self._store is not None else {}

    @property
    def _running(self) -> Broker:
        if self.broker is None:
            raise LocalMisuse("the broker has not started")
        return self.broker

    async def _open_port(self) -> None:
        limits = self.config.limits
        self._server = RemotingServer(
            Router(self.handlers, access=self.access),
            frame_size_bytes_max=limits.frame_size_bytes_max,
            output_bytes_max=limits.connection_output_bytes_max,
            connections_max=limits.connections_max,
            tls=ServerTls.of(self.config.tls),
        )
        port = await self._server.start(self.config.host, self.config.port)
        self._tell_address(self.config.advertised_host or self.config.host, port)

    def _tell_address(self, host: str, port: int) -> None:
        broker = self._running
        broker.host = "127.0.0.1" if host in ANY_ADDRESS else host
        broker.port = self.port = port
        if self.readers is not None:
            self.readers.start()

    def _make_readers(self, broker: Broker) -> None:
        """Prepare the reader processes; they start once clients can be told of them."""
        config, limits, tls, (level, json) = self.config, self.config.limits, self.config.tls, logs.in_use()
        metrics = ReaderMetrics(self.registry, broker.metrics)
        if not config.range_readers:
            return
        reason = readers_impossible()
        if reason:
            self._log.warning("range_readers_off", reason=reason)
            return
        settings = ReaderSettings(
            directory=str(config.data_directory.resolve()), host=config.host, port=config.range_reader_port,
            access_keys=config.access_keys, open_to_all=config.open_to_all, pull_bytes_max=limits.pull_bytes_max,
            frame_size_bytes_max=limits.frame_size_bytes_max, output_bytes_max=limits.connection_output_bytes_max,
            connections_max=limits.connections_max, log_level=level, log_json=json,
            access_list=_text(config.access_list), tls_mode=tls.mode, tls_certificate=_text(tls.certificate),
            tls_key=_text(tls.key), tls_client_ca=_text(tls.client_ca), tls_client_required=tls.client_required,
        )  # fmt: skip
        pool = self.readers = ReaderPool(config.range_readers, settings, metrics, self._log)
        broker.readers_address = lambda: join_address(broker.host, pool.port) if pool.serving else None

    def _guard_topics(self, broker: Broker) -> None:
        """Put the access list in force, if there is one."""
        if self.config.access_list is not None:
            self._topic_policy = TopicPolicy(self.config.access_list, self._log)
            broker.authorizer = Authorizer(self._topic_policy)

    def _finish_commits(self, broker: Broker) -> None:
        """Carry on the sink commits that a stop interrupted: part of them is visible already."""
        for run in broker.ledger.unfinished():
            try:
                while not run.finished:
                    broker.ledger.step(run)
                self._log.info("commit_finished", sink=run.sink, batch=run.batch, rows=run.total)
            except LightMQError as error:
                self._log.error("commit_not_finished", sink=run.sink, batch=run.batch, error=str(error))

    async def _maintain(self) -> None:
        assert self._store is not None
        interval_s = self.config.maintain_interval_ms / 1_000
        while True:
            await asyncio.sleep(interval_s)
            now_ms = self._clock.now_ms()
            if self._topic_policy is not None:
                await self._topic_policy.look()
            try:
                self._running.maintain(now_ms)
                for _ in range(int(interval_s / UPKEEP_PAUSE_S)):
                    if not self._store.maintain(now_ms):
                        break
                    await asyncio.sleep(UPKEEP_PAUSE_S)
            except (StoreError, OSError) as error:
                self._log.error("upkeep_failed", error=str(error))


def _text(path: Path | None) -> str | None:
    """A path as a reader process is told it, which may run elsewhere."""
    return None if path is None else str(path.resolve())


def readers_impossible() -> str:
    """Why this machine cannot have reader processes; empty when it can."""
    return "" if in_order() else "this processor does not keep loads and stores in order"
