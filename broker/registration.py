"""Registers this broker and its topics with every controller (codes 103, 904, 322, 104).

Each connection has a task: it registers all topics, then sends a heartbeat every `heartbeat_interval_ms`. A topic that
is created or changed is registered as soon as it is confirmed, together with those that changed while the previous
request was under way; the controller keeps the rest. Every `register_interval_ms` the version of the whole table is
compared (322), and everything is registered again where it differs. `Controllers` makes lost connections again; the
broker serves meanwhile, because the control plane is never on the data path.

Invariant: a topic is registered only after its creation is confirmed; the version sent with a registration counts the
changes in it and in those before it on the same connection. Loop thread only.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from broker.topics.topics import DEFAULT_TOPIC, PERMISSION_INHERIT, TopicSettings
from remoting import background, clock
from remoting.client.connection import dial
from remoting.client.controllers import Controllers
from remoting.protocol.bodies.controller_body import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfigTable,
    TopicRoute,
    decode_body,
    encode_body,
)
from remoting.protocol.bodies.controller_body import TopicConfig as TopicBody
from remoting.protocol.errors import LightMQError, Refused
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import Connection, Dial
from remoting.transport.failures import ConnectionLost, checked

if TYPE_CHECKING:
    from broker.requests import RequestTools
    from broker.topics.feature import TopicFeature

MASTER_ID = 0
RETRY_MS = 500
"""Longest pause before a controller that could not be reached, or refused a request, is connected to again."""
REQUEST_TIMEOUT_MS = 3_000
ROUTES_KEPT_MAX = 10_000
"""Routes remembered for the time without controllers; beyond that all are dropped and requested again."""
LIFETIMES = 10
"""A broker counts as dead after missing this many heartbeats."""


class _Controller:
    """One controller: the connection to it, and the confirmed topics not yet registered over that connection."""

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.task: asyncio.Task[None] | None = None
        self.is_registered = False
        self.failure = "not connected yet"
        """Why it is not registered there."""
        self.changed: dict[str, int] = {}
        self.has_changes = asyncio.Event()

    def add(self, name: str, version: int) -> None:
        self.changed[name] = version
        self.has_changes.set()

    def take(self) -> dict[str, int]:
        """The topics to register now; they count as sent from here on."""
        changed, self.changed = self.changed, {}
        self.has_changes.clear()
        return changed

    def disconnect(self) -> None:
        if self.task is not None:
            self.task.cancel()
        self.task, self.connection, self.is_registered = None, None, False


class Registration:
    """Keeps this broker registered with every controller."""

    def __init__(self, tools: RequestTools, topics: TopicFeature, *, make_connection: Dial = dial) -> None:
        self._config = tools.config
        self._store = tools.store
        self._log = tools.log
        self._broker = tools.identity
        self._topics = topics.table
        self._publication = topics.publication
        self._connect = make_connection
        self._link: Controllers | None = None
        self._controllers: dict[str, _Controller] = {}
        self._confirmed_version = 0
        self._routes: dict[str, TopicRoute] = {}
        topics.table.on_change(self._topic_changed)

    @property
    def registered(self) -> bool:
        """True when this broker is registered with at least one controller, or none is configured."""
        return not self._controllers or any(each.is_registered for each in self._controllers.values())

    @property
    def failures(self) -> dict[str, str]:
        """Controllers with which this broker is not registered, and why."""
        return {address: each.failure for address, each in self._controllers.items() if not each.is_registered}

    @property
    def controllers(self) -> Controllers | None:
        """The connections to the controllers; None where none are configured."""
        return self._link

    def configure(self) -> None:
        """Register the template of new topics again: its queues or its permission may have changed."""
        for controller in self._controllers.values():
            controller.add(DEFAULT_TOPIC, self._confirmed_version)

    def start(self, addresses: tuple[str, ...]) -> None:
        """Begin to register with each controller."""
        self._controllers = {address: _Controller() for address in addresses}
        for address in addresses:
            self._publication.watch(address)
        if not addresses:
            return
        self._link = Controllers(
            addresses, self._connect, timeout_ms=REQUEST_TIMEOUT_MS, pause_first_ms=RETRY_MS, pause_ms_max=RETRY_MS
        )
        self._link.on_up(self._connected)
        self._link.on_down(self._disconnected)
        self._link.start()

    async def stop(self, *, good_bye: bool = True) -> None:
        """Unregister from the controllers that can be reached, then close the connections.

        Without `good_bye` nothing is unregistered: another broker may have this one's address or the master's entry in
        the routes by now.
        """
        self._publication.stop()
        controllers, self._controllers = self._controllers, {}
        connections = [each.connection for each in controllers.values() if each.connection is not None]
        tasks = [each.task for each in controllers.values() if each.task is not None]
        for controller in controllers.values():
            controller.disconnect()
        await asyncio.gather(*tasks, return_exceptions=True)
        if good_bye:
            await asyncio.gather(*map(self._unregister, connections))
        else:
            for connection in connections:
                connection.abort("no longer the master")
        if self._link is not None:
            await self._link.stop()

    async def find_route(self, topic: str) -> TopicRoute | None:
        """Where a topic's queues are, in all broker groups; the last known route while no controller can be reached.

        None where no controller is configured.

        Raises:
            Refused: no broker has such a topic.
            ConnectionLost, RequestTimeout: no controller can be reached, and the route was never known.
        """
        if self._link is None:
            return None
        failure: LightMQError = ConnectionLost("no controller is connected")
        connections = [each.connection for each in self._controllers.values() if each.is_registered]
        for connection in connections:
            assert connection is not None
            command = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields={"topic": topic})
            try:
                route = decode_body(checked(await connection.request(command, REQUEST_TIMEOUT_MS)).body, TopicRoute)
            except Refused:
                self._routes.pop(topic, None)
                raise
            except LightMQError as error:
                failure = error
                continue
            if len(self._routes) >= ROUTES_KEPT_MAX:
                self._routes.clear()
            self._routes[topic] = route
            return route
        if topic in self._routes:
            return self._routes[topic]
        raise failure

    def _topic_changed(self, name: str, _created: bool) -> None:
        topics = self._topics
        if topics.get(name) is None:
            return  # its route goes by a request of its own (216)
        version = topics.version
        self._publication.changed(name, version)
        self._store.when_confirmed(topics.position(name), partial(self._topic_confirmed, name, version))

    def _topic_confirmed(self, name: str, version: int, error: Exception | None) -> None:
        if error is None:
            self._confirmed_version = max(self._confirmed_version, version)
            for controller in self._controllers.values():
                controller.add(name, version)

    def _connected(self, address: str, connection: Connection) -> None:
        controller = self._controllers.get(address)
        if controller is not None:
            controller.connection = connection
            controller.task = background.task(
                self._keep(connection, address, controller), f"registers this broker with {address}"
            )

    def _disconnected(self, address: str, reason: str) -> None:
        controller = self._controllers.get(address)
        if controller is None:
            return
        controller.failure = reason
        if controller.connection is not None:
            self._log.warning("controller_lost", controller=address, error=reason)
        controller.disconnect()
        self._publication.unreachable(address)

    async def _keep(self, connection: Connection, address: str, controller: _Controller) -> None:
        """Register and send heartbeats until the connection ends; a request that fails ends it."""
        try:
            await self._serve(connection, address, controller)
        except (LightMQError, OSError) as error:
            connection.abort(str(error))

    async def _serve(self, connection: Connection, address: str, controller: _Controller) -> None:
        config = self._config
        await self._register_all(connection, address, controller)
        controller.is_registered = True
        self._log.info("registered", controller=address, topics=len(self._topics))
        due = clock.monotonic_s() + config.register_interval_ms / 1_000
        while True:
            if controller.has_changes.is_set():
                await self._register_changed(connection, address, controller)
            elif clock.monotonic_s() < due:
                await self._heartbeat(connection)
            else:
                if await self._differs(connection):
                    await self._register_all(connection, address, controller)
                due = clock.monotonic_s() + config.register_interval_ms / 1_000
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(config.heartbeat_interval_ms / 1_000):  # wait_for can lose a cancellation
                    await controller.has_changes.wait()

    async def _register_all(self, connection: Connection, address: str, controller: _Controller) -> None:
        await self._confirmed()
        topics, confirmed = self._topics, self._store.confirm_position
        known = [config for config in topics if topics.position(config.name) <= confirmed]
        version = self._confirmed_version
        controller.take()
        await self._register(connection, (*known, self._template()), version)
        # A newer version was not among them, or is registered once more.
        self._publication.acknowledged(address, {config.name: version for config in known})

    async def _register_changed(self, connection: Connection, address: str, controller: _Controller) -> None:
        version, changed = self._confirmed_version, controller.take()
        configs = [config for config in map(self._topics.get, changed) if config is not None]
        if DEFAULT_TOPIC in changed:
            configs.append(self._template())
        if configs:
            await self._register(connection, configs, version)
        self._publication.acknowledged(address, changed)

    async def _register(self, connection: Connection, topics: Iterable[TopicSettings], version: int) -> None:
        body = RegisterBrokerBody(
            TopicConfigTable({config.name: topic_body(config) for config in topics}, self._data_version(version))
        )
        command = Command(RequestCode.REGISTER_BROKER, fields=self._identity(), body=encode_body(body))
        acting = str(self._config.replication.acting_master).lower()
        command.fields |= {"haServerAddr": "", "compressed": "false", "bodyCrc32": "0", "enableActingMaster": acting}
        checked(await connection.request(command, REQUEST_TIMEOUT_MS))

    async def _differs(self, connection: Connection) -> bool:
        """Whether the controller has another version of the topics than the last one registered."""
        body = encode_body(self._data_version(self._confirmed_version))
        command = Command(RequestCode.QUERY_DATA_VERSION, fields=self._identity(), body=body)
        return checked(await connection.request(command, REQUEST_TIMEOUT_MS)).fields.get("changed") != "false"

    def _data_version(self, version: int) -> DataVersion:
        return DataVersion(self._store.epoch, self._broker.started_ms, version)

    async def _heartbeat(self, connection: Connection) -> None:
        store = self._store
        command = Command(RequestCode.BROKER_HEARTBEAT, fields=self._identity())
        command.fields |= {
            "epoch": str(store.epoch),
            "maxOffset": str(store.end_position),
            "confirmOffset": str(store.confirm_position),
        }
        checked(await connection.request(command, REQUEST_TIMEOUT_MS))

    async def _unregister(self, connection: Connection) -> None:
        with contextlib.suppress(LightMQError, OSError):
            await connection.request(
                Command(RequestCode.UNREGISTER_BROKER, fields=self._identity()), REQUEST_TIMEOUT_MS
            )

    async def _confirmed(self) -> None:
        """Return when every topic known now is confirmed.

        Messages behind the last of them need not be: a master that waits for its replicas is registered before they
        connect, because confirmed messages can be read.
        """
        topics = self._topics
        newest = max((topics.position(config.name) for config in topics), default=0)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: Exception | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        self._store.when_confirmed(newest, done)
        await future

    def _template(self) -> TopicSettings:
        """The topic whose route clients request when their own does not exist yet."""
        count = self._config.template_queue_count
        permission = 6 | PERMISSION_INHERIT if self._config.auto_create_topics else 0
        return TopicSettings(name=DEFAULT_TOPIC, read_queue_count=count, write_queue_count=count, permission=permission)

    def _identity(self) -> dict[str, str]:
        config = self._config
        timeout_ms = str(config.heartbeat_interval_ms * LIFETIMES)
        return {
            "clusterName": config.cluster_name,
            "brokerName": config.broker_name,
            "brokerAddr": self._broker.address,
            "brokerId": str(MASTER_ID),
            "heartbeatTimeoutMillis": timeout_ms,
            "heartbeatTimeoutMills": timeout_ms,
        }


def topic_body(config: TopicSettings) -> TopicBody:
    """A topic as it is registered."""
    return TopicBody(
        config.name,
        config.read_queue_count,
        config.write_queue_count,
        config.permission,
        config.filter_type,
        config.system_flag,
        config.order,
        config.attributes,
    )
