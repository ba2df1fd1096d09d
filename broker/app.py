"""Composition root of a broker: builds the store, the views, the handlers, the port; decides nothing.

`lightmq broker` runs it alone on its own port. `lightmq up` passes `listen=False`, merges `handlers` with the
controller's on one port and tells that port by `announce`, and hands in an in-process connection to the controller.
Order of start: store (recovery), commits that a stop interrupted, port, registration; the stop is the reverse, so
nothing is accepted that could not be acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from broker.api.context import Broker
from broker.api.router import handlers
from broker.api.topic_list import status
from broker.config import BrokerConfig
from broker.registration import Connect, Registration
from broker.store.errors import StoreError
from broker.store.log_store import LogStore
from remoting.client.connection import dial
from remoting.protocol.errors import LightMQError, LocalMisuse
from remoting.server.access import Access
from remoting.server.router import Router
from remoting.server.server import RemotingServer
from remoting.transport.contracts import Handler
from remoting.transport.turn import soon
from runtime.clock import Clock, SystemClock
from runtime.faults import FaultPoints
from runtime.logs import get_logger
from runtime.metrics import Registry

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
        connect_controller: Connect = dial,
        listen: bool = True,
    ) -> None:
        self.config = config
        self.registry = registry or Registry()
        self.port = 0
        self.broker: Broker | None = None
        self._clock = clock or SystemClock()
        self._faults = faults or FaultPoints()
        self._connect_controller = connect_controller
        self._listen = listen
        self._log = get_logger("broker")
        self._store: LogStore | None = None
        self._server: RemotingServer | None = None
        self._registration: Registration | None = None
        self._upkeep: asyncio.Task[None] | None = None

    @property
    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler; there once the broker has started."""
        return handlers(self._running)

    @property
    def access(self) -> Access:
        """Who may send requests, as configured."""
        return make_access(self.config)

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
        try:
            self.broker = Broker(self.config, self._store, self._clock, self.registry, self._log)
            self._finish_commits(self.broker)
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

    async def stop(self) -> None:
        """Leave the controllers, close the port, flush and close the log; more than once is fine."""
        if self._registration is not None:
            await self._registration.stop()
        if self._server is not None:
            await self._server.stop()
        if self._upkeep is not None:
            self._upkeep.cancel()
            await asyncio.gather(self._upkeep, return_exceptions=True)
        if self._store is not None:
            self._store.close()
        self._server = self._store = self._registration = self._upkeep = None

    def readiness(self) -> dict[str, bool]:
        """Part -> whether it can do its work: the log takes messages, a controller knows us."""
        if self._store is None:
            return {"store": False, "registration": False}
        state = self._store.metrics()
        return {
            "store": not state["failed"] and not state["disk_full"],
            "registration": self._registration is not None and self._registration.registered,
        }

    def ready(self) -> bool:
        """True when every part is ready."""
        return all(self.readiness().values())

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
        )
        port = await self._server.start(self.config.host, self.config.port)
        self._tell_address(self.config.advertised_host or self.config.host, port)

    def _tell_address(self, host: str, port: int) -> None:
        broker = self._running
        broker.host = "127.0.0.1" if host in ANY_ADDRESS else host
        broker.port = self.port = port

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
        while True:
            await asyncio.sleep(self.config.maintain_interval_ms / 1_000)
            now_ms = self._clock.now_ms()
            try:
                self._store.maintain(now_ms)
                self._running.maintain(now_ms)
            except (StoreError, OSError) as error:
                self._log.error("upkeep_failed", error=str(error))


def make_access(config: BrokerConfig) -> Access:
    """The access check of a configuration. Raises LocalMisuse for an access key that is not `key:secret`."""
    keys = {}
    for pair in config.access_keys:
        key, separator, secret = pair.partition(":")
        if not separator or not key or not secret:
            raise LocalMisuse("broker.access_keys: an entry is not of the form key:secret")
        keys[key] = secret
    return Access(keys, open_to_all=config.open_to_all)
