"""One deployable as a process of its own: its application and its administration port, started and stopped together.

Invariant: the administration port opens last and closes first, so that it never says ready for something that is not
there. Loop rule: made and used on one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lightmq.admin_keys import AdminKeys
from remoting.access.rights import page_actions
from remoting.server.page_access import PageAccess
from runtime.admin import AdminServer, Guard
from runtime.clock import SystemClock
from runtime.metrics import Registry
from runtime.service import Service, ServiceGroup

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from controller.config import ControllerConfig
    from lightmq.configuration import LogsConfig
    from mqtt_bridge.config import BridgeConfig
    from mqtt_proxy.config import ProxyConfig


async def never() -> Exception:
    """For a part that has no reason to end by itself."""
    waiting: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
    return await waiting


def nothing() -> None:
    """For a part that has nothing to read again."""


class Part:
    """One application with an administration port."""

    def __init__(
        self,
        name: str,
        application: Service,
        *,
        registry: Registry,
        admin: tuple[str, int, Sequence[str]],
        guard: Guard,
        ready: Callable[[], bool],
        status: Callable[[], Mapping[str, Any]],
        port: tuple[str, Callable[[], int]] | None = None,
        more_ports: Callable[[], Mapping[str, int]] = dict,
        until_failed: Callable[[], Awaitable[Exception]] = never,
        reason: Callable[[], str] = str,
        reload: Callable[[], None] = nothing,
        stop_deadline_s: float | None = None,
        keys: AdminKeys | None = None,
    ) -> None:
        """``guard`` decides who sees the administration pages, ``keys`` are its own where the application has none.
        ``port`` is what the application's port speaks and how to read its number, if it has one; ``reason`` why it is
        not ready."""
        self.reload = reload
        self.until_failed = until_failed
        self._group = ServiceGroup()
        self._admin = AdminServer(
            *admin[:2],
            registry=registry,
            guard=guard,
            readiness=self._group.readiness,
            status=status,
            reasons=lambda: {name: reason()},
            hosts=admin[2],
        )
        self._keys = keys
        self._port = port
        self._more_ports = more_ports
        self._group.add(name, application, ready=ready, stop_deadline_s=stop_deadline_s)
        self._group.add("admin", self._admin)

    async def start(self) -> None:
        """Start the application, then the administration port."""
        await self._group.start()
        if self._keys is not None:
            await self._keys.start()

    async def stop(self) -> None:
        """Stop both."""
        if self._keys is not None:
            await self._keys.stop()
        await self._group.stop()

    def ports(self) -> Mapping[str, int]:
        """Open ports by what they speak."""
        own = {} if self._port is None else {self._port[0]: self._port[1]()}
        return {**own, "admin": self._admin.port, **self._more_ports()}


def controller_part(config: ControllerConfig) -> Part:
    """A controller."""
    from controller.app import ControllerApp

    registry = Registry()
    application = ControllerApp(config, registry=registry)
    return Part(
        "controller",
        application,
        registry=registry,
        admin=(config.admin_host, config.admin_port, config.admin_hosts),
        guard=PageAccess(application.access, application.authorizer, page_actions()),
        ready=application.ready,
        status=application.status,
        port=("remoting", lambda: application.port),
        until_failed=application.until_failed,
        reason=application.unready_reason,
        reload=application.reload,
    )


def broker_part(config: BrokerConfig) -> Part:
    """A broker."""
    from broker.app import BrokerApp

    registry = Registry()
    application = BrokerApp(config, registry=registry)
    return Part(
        "broker",
        application,
        registry=registry,
        admin=(config.admin_host, config.admin_port, config.admin_hosts),
        guard=PageAccess(application.access, application.authorizer, page_actions()),
        ready=application.ready,
        status=application.status,
        port=("remoting", lambda: application.port),
        reload=application.reload,
        more_ports=application.reader_ports,
        until_failed=application.until_failed,
        reason=application.unready_reason,
    )


def proxy_part(config: ProxyConfig) -> Part:
    """An MQTT proxy."""
    from mqtt_proxy.app import ProxyApp

    registry = Registry()
    application = ProxyApp(config, clock=SystemClock(), registry=registry)
    keys = AdminKeys(config.admin_access_keys, config.admin_access_list)
    return Part(
        "proxy",
        application,
        registry=registry,
        admin=(config.admin_host, config.admin_port, config.admin_hosts),
        guard=keys.guard,
        keys=keys,
        ready=lambda: application.ready,
        status=lambda: {"port": application.port, "ports": application.ports(), "metrics": registry.values()},
        port=("mqtt", lambda: application.port),
        more_ports=application.ports,
        reload=application.reload,
        stop_deadline_s=config.stop_s_max,
    )


def proxies_part(config: ProxyConfig, logs: LogsConfig) -> Part:
    """Several MQTT proxies on the same ports."""
    from lightmq.proxy_pool import ProxyPool, ProxyPoolMetrics

    registry = Registry()
    pool = ProxyPool(config, logs, ProxyPoolMetrics(registry))
    keys = AdminKeys(config.admin_access_keys, config.admin_access_list)
    return Part(
        "proxies",
        pool,
        registry=registry,
        admin=(config.admin_host, config.admin_port, config.admin_hosts),
        guard=keys.guard,
        keys=keys,
        ready=lambda: pool.ready,
        status=lambda: {"ports": pool.ports(), "proxies": pool.status(), "metrics": registry.values()},
        more_ports=pool.ports,
        reload=pool.reload,
        stop_deadline_s=config.stop_s_max + 1.0,
    )


def bridge_part(config: BridgeConfig) -> Part:
    """A bridge to other MQTT brokers."""
    from mqtt_bridge.app import BridgeApp

    registry = Registry()
    application = BridgeApp(config, clock=SystemClock(), registry=registry)
    keys = AdminKeys(config.admin_access_keys, config.admin_access_list)
    return Part(
        "bridge",
        application,
        registry=registry,
        admin=(config.admin_host, config.admin_port, config.admin_hosts),
        guard=keys.guard,
        keys=keys,
        ready=lambda: application.ready,
        status=lambda: {**application.status(), "metrics": registry.values()},
        reason=application.reason,
    )
