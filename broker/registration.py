"""Tells the controllers that this broker lives and which topics it serves (codes 103, 904, 322, 104).

Each controller has its own task: connect, register all topics, then a heartbeat each `heartbeat_interval_ms`. A topic
that is created or changed is registered alone as soon as it is confirmed, with all others that changed while the
request before was under way; the controller keeps what it knows of the rest. Each `register_interval_ms` the version of
the whole table is compared (322), and everything is registered anew where it differs. A controller that cannot be
reached is tried again; the broker serves meanwhile, because the control plane is never on the data path.

Invariant: a topic is registered only when its creation is confirmed; the version that goes with a registration counts
the changes that it and those before it on the same connection told. Loop thread only.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from broker.topics.topics import DEFAULT_TOPIC, PERMISSION_INHERIT, TopicSettings
from remoting.client.connection import dial
from remoting.protocol.bodies.route_body import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfigTable,
    TopicRoute,
    decode_body,
    encode_body,
)
from remoting.protocol.bodies.route_body import TopicConfig as TopicBody
from remoting.protocol.errors import LightMQError, Refused
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import Connection, Dial
from remoting.transport.failures import ConnectionLost, checked

if TYPE_CHECKING:
    from broker.requests.tools import RequestTools
    from broker.topics.feature import TopicFeature

MASTER_ID = 0
RETRY_SECONDS = 0.5
"""Pause before a controller that could not be reached is tried again."""
REQUEST_TIMEOUT_MS = 3_000
ROUTES_KEPT_MAX = 10_000
"""Routes remembered for the time without controllers; all are forgotten beyond that, and asked for again."""
LIFETIMES = 10
"""A broker counts as gone after so many heartbeats were missed."""


class _Controller:
    """One controller, and the confirmed topics it has not been told of on this connection."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.changed: dict[str, int] = {}
        self.news = asyncio.Event()

    def tell(self, name: str, version: int) -> None:
        self.changed[name] = version
        self.news.set()

    def take(self) -> dict[str, int]:
        """What is to be told now; it is on its way from here on."""
        changed, self.changed = self.changed, {}
        self.news.clear()
        return changed


class Registration:
    """Keeps this broker known at every controller."""

    def __init__(self, tools: RequestTools, topics: TopicFeature, *, make_connection: Dial = dial) -> None:
        self._config = tools.config
        self._store = tools.store
        self._log = tools.log
        self._broker = tools.identity
        self._topics = topics.table
        self._publication = topics.publication
        self._connect = make_connection
        self._tasks: list[asyncio.Task[None]] = []
        self._controllers: list[_Controller] = []
        self._registered: set[str] = set()
        self._says_good_bye = True
        self._is_configured = False
        self._confirmed_version = 0
        self._connections: dict[str, Connection] = {}
        self._routes: dict[str, TopicRoute] = {}
        topics.table.on_change(self._topic_changed)

    @property
    def registered(self) -> bool:
        """True when at least one controller knows this broker, or none is configured."""
        return bool(self._registered) or not self._tasks

    def start(self, addresses: tuple[str, ...]) -> None:
        """Begin to register with each controller."""
        self._is_configured = bool(addresses)
        for address in addresses:
            controller = _Controller(address)
            self._controllers.append(controller)
            self._publication.watch(address)
            self._tasks.append(asyncio.get_running_loop().create_task(self._keep(controller)))

    async def stop(self, *, good_bye: bool = True) -> None:
        """Say good-bye to the controllers that can be reached, then stop.

        Without: this broker's address and the master's place in the routes belong to somebody else by now.
        """
        self._says_good_bye = good_bye
        for task in self._tasks:
            task.cancel()
        self._publication.stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        self._controllers.clear()

    async def find_route(self, topic: str) -> TopicRoute | None:
        """Where a topic's queues are, in all broker groups; as it was known last while no controller can be asked.

        None where no controller is configured.

        Raises:
            Refused: no broker has such a topic.
            ConnectionLost, RequestTimeout: no controller can be asked, and nobody did before.
        """
        if not self._is_configured:
            return None
        failure: LightMQError = ConnectionLost("none is connected")
        for connection in list(self._connections.values()):
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
            for controller in self._controllers:
                controller.tell(name, version)

    async def _keep(self, controller: _Controller) -> None:
        address, publication = controller.address, self._publication
        warned = False
        while True:
            try:
                connection = await self._connect(address)
            except (LightMQError, OSError) as error:
                publication.unreachable(address)
                if not warned:
                    self._log.warning("controller_unreachable", controller=address, error=str(error))
                warned = True
                await asyncio.sleep(RETRY_SECONDS)
                continue
            warned = False
            try:
                await self._serve(connection, controller)
            except (LightMQError, OSError) as error:
                publication.unreachable(address)
                self._log.warning("controller_lost", controller=address, error=str(error))
                await asyncio.sleep(RETRY_SECONDS)
            finally:
                self._registered.discard(address)
                self._connections.pop(address, None)
                with contextlib.suppress(LightMQError, OSError):
                    await self._leave(connection)

    async def _serve(self, connection: Connection, controller: _Controller) -> None:
        config, loop, address = self._config, asyncio.get_running_loop(), controller.address
        await self._register_all(connection, controller)
        self._registered.add(address)
        self._connections[address] = connection
        self._log.info("registered", controller=address, topics=len(self._topics))
        due = loop.time() + config.register_interval_ms / 1_000
        while True:
            if controller.news.is_set():
                await self._register_changed(connection, controller)
            elif loop.time() < due:
                await self._heartbeat(connection)
            else:
                if await self._differs(connection):
                    await self._register_all(connection, controller)
                due = loop.time() + config.register_interval_ms / 1_000
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(controller.news.wait(), config.heartbeat_interval_ms / 1_000)

    async def _register_all(self, connection: Connection, controller: _Controller) -> None:
        await self._confirmed()
        topics, confirmed = self._topics, self._store.confirm_position
        known = [config for config in topics if topics.position(config.name) <= confirmed]
        version = self._confirmed_version
        controller.take()
        await self._register(connection, (*known, self._template()), version)
        # What is newer than this was not among them, or is told once more.
        self._publication.acknowledged(controller.address, {config.name: version for config in known})

    async def _register_changed(self, connection: Connection, controller: _Controller) -> None:
        version, changed = self._confirmed_version, controller.take()
        configs = [config for config in map(self._topics.get, changed) if config is not None]
        if configs:
            await self._register(connection, configs, version)
        self._publication.acknowledged(controller.address, changed)

    async def _register(self, connection: Connection, topics: Iterable[TopicSettings], version: int) -> None:
        body = RegisterBrokerBody(
            TopicConfigTable({config.name: _topic_body(config) for config in topics}, self._data_version(version))
        )
        command = Command(RequestCode.REGISTER_BROKER, fields=self._identity(), body=encode_body(body))
        command.fields |= {"haServerAddr": "", "compressed": "false", "bodyCrc32": "0", "enableActingMaster": "false"}
        checked(await connection.request(command, REQUEST_TIMEOUT_MS))

    async def _differs(self, connection: Connection) -> bool:
        """Whether the controller has another version of the topics than was told to it."""
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

    async def _leave(self, connection: Connection) -> None:
        if not self._says_good_bye:
            connection.abort("no longer the master")
        elif not connection.closed:
            command = Command(RequestCode.UNREGISTER_BROKER, fields=self._identity())
            await connection.request(command, REQUEST_TIMEOUT_MS)
            await connection.close()

    async def _confirmed(self) -> None:
        """Return when every topic known now is confirmed.

        Messages behind the last of them need not be: a master that waits for its replicas is known before they come,
        because what is confirmed can be read.
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
        """The topic whose route clients ask for when their own does not exist yet."""
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


def _topic_body(config: TopicSettings) -> TopicBody:
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
