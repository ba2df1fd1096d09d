"""Tells the controllers that this broker lives and which topics it serves (codes 103, 904, 104).

Each controller has its own task: connect, register all topics, then a heartbeat each `heartbeat_interval_ms`; a changed
topic table is registered at once (changes of one moment together), and everything anew each `register_interval_ms`. A
controller that cannot be reached is tried again; the broker serves meanwhile, because the control plane is never on the
data path. Invariant: a topic is registered only when its creation is confirmed. Loop thread only.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from broker.meta.topics import DEFAULT_TOPIC, PERMISSION_INHERIT, TopicConfig
from remoting.client.connection import dial
from remoting.protocol.codes import RequestCode
from remoting.protocol.commands import Command
from remoting.protocol.errors import LightMQError
from remoting.protocol.route_body import DataVersion, RegisterBrokerBody, TopicConfigTable, encode_body
from remoting.protocol.route_body import TopicConfig as TopicBody
from remoting.transport.contracts import Connection
from remoting.transport.failures import checked

if TYPE_CHECKING:
    from broker.api.context import Broker

MASTER_ID = 0
RETRY_SECONDS = 0.5
"""Pause before a controller that could not be reached is tried again."""
GATHER_SECONDS = 0.02
"""Topic changes within this time are registered together."""
REQUEST_TIMEOUT_MS = 3_000
LIFETIMES = 10
"""A broker counts as gone after so many heartbeats were missed."""

Connect = Callable[[str], Awaitable[Connection]]


class Registration:
    """Keeps this broker known at every controller."""

    def __init__(self, broker: Broker, *, make_connection: Connect = dial) -> None:
        self._broker = broker
        self._connect = make_connection
        self._tasks: list[asyncio.Task[None]] = []
        self._changed: list[asyncio.Event] = []
        self._registered: set[str] = set()
        self._says_good_bye = True
        broker.topics.on_change(self._topic_changed)

    @property
    def registered(self) -> bool:
        """True when at least one controller knows this broker, or none is configured."""
        return bool(self._registered) or not self._tasks

    def start(self, addresses: tuple[str, ...]) -> None:
        """Begin to register with each controller."""
        for address in addresses:
            changed = asyncio.Event()
            self._changed.append(changed)
            self._tasks.append(asyncio.get_running_loop().create_task(self._keep(address, changed)))

    async def stop(self, *, good_bye: bool = True) -> None:
        """Say good-bye to the controllers that can be reached, then stop.

        Without: this broker's address and the master's place in the routes belong to somebody else by now.
        """
        self._says_good_bye = good_bye
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    def _topic_changed(self, _name: str, _created: bool) -> None:
        for changed in self._changed:
            changed.set()

    async def _keep(self, address: str, changed: asyncio.Event) -> None:
        warned = False
        while True:
            try:
                connection = await self._connect(address)
            except (LightMQError, OSError) as error:
                if not warned:
                    self._broker.log.warning("controller_unreachable", controller=address, error=str(error))
                warned = True
                await asyncio.sleep(RETRY_SECONDS)
                continue
            warned = False
            try:
                await self._serve(connection, address, changed)
            except (LightMQError, OSError) as error:
                self._broker.log.warning("controller_lost", controller=address, error=str(error))
                await asyncio.sleep(RETRY_SECONDS)
            finally:
                self._registered.discard(address)
                with contextlib.suppress(LightMQError, OSError):
                    await self._leave(connection)

    async def _serve(self, connection: Connection, address: str, changed: asyncio.Event) -> None:
        config = self._broker.config
        loop = asyncio.get_running_loop()
        while True:
            changed.clear()
            await self._register(connection)
            if address not in self._registered:
                self._registered.add(address)
                self._broker.log.info("registered", controller=address, topics=len(self._broker.topics))
            due = loop.time() + config.register_interval_ms / 1_000
            while not changed.is_set() and loop.time() < due:
                await self._heartbeat(connection)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), config.heartbeat_interval_ms / 1_000)
            if changed.is_set():
                await asyncio.sleep(GATHER_SECONDS)

    async def _register(self, connection: Connection) -> None:
        await self._confirmed()
        broker = self._broker
        table = {config.name: _topic_body(config) for config in (*broker.topics, self._template())}
        version = DataVersion(broker.store.epoch, broker.started_ms, broker.topics.version)
        body = RegisterBrokerBody(TopicConfigTable(table, version))
        command = Command(RequestCode.REGISTER_BROKER, fields=self._identity(), body=encode_body(body))
        command.fields |= {"haServerAddr": "", "compressed": "false", "bodyCrc32": "0", "enableActingMaster": "false"}
        checked(await connection.request(command, REQUEST_TIMEOUT_MS))

    async def _heartbeat(self, connection: Connection) -> None:
        store = self._broker.store
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
        """Return when every topic known now is confirmed."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: Exception | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        self._broker.store.when_confirmed(self._broker.store.end_position, done)
        await future

    def _template(self) -> TopicConfig:
        """The topic whose route clients ask for when their own does not exist yet."""
        count = self._broker.config.default_queue_count
        permission = 6 | PERMISSION_INHERIT if self._broker.config.auto_create_topics else 0
        return TopicConfig(name=DEFAULT_TOPIC, read_queue_count=count, write_queue_count=count, permission=permission)

    def _identity(self) -> dict[str, str]:
        config = self._broker.config
        timeout_ms = str(config.heartbeat_interval_ms * LIFETIMES)
        return {
            "clusterName": config.cluster_name,
            "brokerName": config.broker_name,
            "brokerAddr": self._broker.address,
            "brokerId": str(MASTER_ID),
            "heartbeatTimeoutMillis": timeout_ms,
            "heartbeatTimeoutMills": timeout_ms,
        }


def _topic_body(config: TopicConfig) -> TopicBody:
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
