"""One deployable as a process of its own: its application and its administration port, started and stopped together.

Invariant: the administration port opens last and closes first, so that it never reports ready for a part that does
not run. Loop rule: made and used on one event loop.

Who may see the administration pages of a part that has no port for signed requests: an MQTT proxy, a bridge.

Their keys and their list are of the same kind as those of brokers and controllers, and the same `authorize()` decides;
MQTT users are no administrators. Invariant: without keys a client on another machine sees no more than a probe does.
Loop rule: made and used on one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from ssl import SSLContext
from typing import TYPE_CHECKING, Any

from console.app import Console, admin_tls
from lightmq.servers.serving import client_host
from lightmq.servers.tracing import Tracing
from lightmq.version import VERSION
from remoting import background
from remoting.access.key_policy import KeyPolicy
from remoting.access.rights import page_actions
from remoting.client.connection import signing_dial
from remoting.client.tls import ClientTls
from remoting.protocol.addresses import join_address
from remoting.server.authorizer import Authorizer
from remoting.server.router import Access, parse_access_keys
from remoting.server.server import PageAccess
from runtime.admin import AdminServer, Guard
from runtime.clock import SystemClock
from runtime.files import WatchedFile
from runtime.logs import get_logger
from runtime.metrics import Registry
from runtime.service import Service, ServiceGroup
from runtime.tracing_config import TracingConfig

if TYPE_CHECKING:
    from broker.app import BrokerApp
    from broker.config import BrokerConfig
    from console.config import ConsoleConfig
    from controller.app import ControllerApp
    from controller.config import ControllerConfig
    from grpc_proxy.app import GrpcProxyApp
    from grpc_proxy.config import GrpcConfig
    from lightmq.configuration import LogsConfig
    from lightmq.servers.proxy_pool import ProxyPool
    from mqtt_bridge.app import BridgeApp
    from mqtt_bridge.config import BridgeConfig
    from mqtt_proxy.app import ProxyApp
    from mqtt_proxy.config import ProxyConfig

    PartConfig = BrokerConfig | ControllerConfig | ProxyConfig | BridgeConfig | GrpcConfig


NO_TRACES = TracingConfig()


class AdminKeys:
    """Keys and, where there is one, the access list, which is watched while the part runs."""

    def __init__(self, keys: Sequence[str], access_list: Path | None) -> None:
        """LocalMisuse for a key that is none."""
        policy = None if access_list is None else KeyPolicy(access_list, get_logger("admin"), WatchedFile)
        access = Access(parse_access_keys(keys), keys_count=policy is not None)
        self.guard = PageAccess(access, Authorizer(policy), page_actions())
        self._policy = policy
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Watch the access list on the running loop; nothing to do without a list."""
        if self._policy is not None:
            self._watching = background.task(
                self._policy.keep_current(), "watches the access list of the administration port"
            )

    async def stop(self) -> None:
        """Stop watching the access list."""
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching


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
        site: Console | None = None,
        tls: SSLContext | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        """``guard`` protects the administration pages, ``keys`` are its own if the application has none.
        ``port`` is the protocol of the application's port and how to read its number, if it has one; ``reason`` why it
        is not ready."""
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
            site=site,
            tls=tls,
        )
        self._keys = keys
        self._console = site
        self._port = port
        self._more_ports = more_ports
        if tracing is not None and tracing.tracer is not None:
            self._group.add("tracing", tracing)
        self._group.add(name, application, ready=ready, stop_deadline_s=stop_deadline_s)
        if site is not None:
            self._group.add("console", site)
        self._group.add("admin", self._admin)

    async def start(self) -> None:
        """Start the application, then the administration port."""
        await self._group.start()
        if self._keys is not None:
            await self._keys.start()

    async def stop(self) -> None:
        """Stop watching the access list, then the services in reverse order."""
        if self._keys is not None:
            await self._keys.stop()
        await self._group.stop()

    def unready(self) -> Mapping[str, str]:
        """Part -> why it does not do its work now."""
        return self._admin.unready()

    def ports(self) -> Mapping[str, int]:
        """Open ports by protocol."""
        own = {} if self._port is None else {self._port[0]: self._port[1]()}
        return {**own, "admin": self._admin.port, **self._more_ports()}

    def notes(self) -> Mapping[str, str]:
        """What is said with the ports: the administrator token, if this start made it."""
        token = "" if self._console is None else self._console.first_token
        return {"console_token": token} if token else {}


def _part(name: str, application: Service, config: PartConfig, console: ConsoleConfig | None, **offers: Any) -> Part:
    """What all parts have in common; ``offers`` are the arguments of Part in which they differ."""
    admin = (config.admin_host, config.admin_port, config.admin_hosts)
    tls = None if console is None else admin_tls(console)
    return Part(name, application, admin=admin, tls=tls, **offers)


def _console(
    config: ConsoleConfig | None,
    application: BrokerApp | ControllerApp,
    part: BrokerConfig | ControllerConfig,
    guard: PageAccess,
    registry: Registry,
) -> Console | None:
    """The console of a part of a cluster, if it has a key to ask the other parts with."""
    if config is None or not config.enabled or config.access_key_file is None:
        return None
    known = config.controllers or getattr(part, "controllers", ())
    own = client_host(part.host)
    return Console(
        config, identities=guard, dial=signing_dial(config.access_key_file, ClientTls.of(config.dial_tls)),
        controllers=lambda: known or (join_address(own, application.port),), directory=part.data_directory,
        clock=SystemClock(), registry=registry, mode="cluster",
        node=getattr(part, "broker_name", "") or getattr(part, "node_id", ""), version=VERSION,
    )  # fmt: skip


def _remoting_part(
    name: str,
    application: BrokerApp | ControllerApp,
    config: BrokerConfig | ControllerConfig,
    console: ConsoleConfig | None,
    **offers: Any,
) -> Part:
    """A part that serves remoting: its access list decides about the pages and the console as well."""
    guard = PageAccess(application.access, application.authorizer, page_actions())
    return _part(
        name,
        application,
        config,
        console,
        guard=guard,
        site=_console(console, application, config, guard, offers["registry"]),
        ready=application.ready,
        status=application.status,
        port=("remoting", lambda: application.port),
        until_failed=application.until_failed,
        reason=application.unready_reason,
        reload=application.reload,
        **offers,
    )


def _keyed_part(
    name: str,
    application: ProxyApp | ProxyPool | BridgeApp | GrpcProxyApp,
    config: ProxyConfig | BridgeConfig | GrpcConfig,
    console: ConsoleConfig | None,
    **offers: Any,
) -> Part:
    """A part without remoting: its pages have keys of their own."""
    keys = AdminKeys(config.admin_access_keys, config.admin_access_list)
    return _part(
        name, application, config, console, guard=keys.guard, keys=keys, ready=lambda: application.ready, **offers
    )


def controller_part(config: ControllerConfig, console: ConsoleConfig | None = None) -> Part:
    """A controller as a process of its own, with the administration port on the same access keys."""
    from controller.app import ControllerApp

    registry = Registry()
    return _remoting_part("controller", ControllerApp(config, registry=registry), config, console, registry=registry)


def broker_part(config: BrokerConfig, console: ConsoleConfig | None = None, tracing: TracingConfig = NO_TRACES) -> Part:
    """A broker as a process of its own; the ports of its reader processes are reported too."""
    from broker.app import BrokerApp

    registry = Registry()
    traces = Tracing(tracing, "lightmq-broker", registry)
    application = BrokerApp(config, registry=registry, tracer=traces.tracer)
    return _remoting_part(
        "broker", application, config, console, registry=registry, more_ports=application.reader_ports, tracing=traces
    )


def proxy_part(config: ProxyConfig, console: ConsoleConfig | None = None, tracing: TracingConfig = NO_TRACES) -> Part:
    """An MQTT proxy as a process of its own, with access keys for its administration port."""
    from mqtt_proxy.app import ProxyApp

    registry = Registry()
    traces = Tracing(tracing, "lightmq-proxy", registry)
    application = ProxyApp(config, clock=SystemClock(), registry=registry, tracer=traces.tracer)
    return _keyed_part(
        "proxy",
        application,
        config,
        console,
        registry=registry,
        status=lambda: {"ports": application.ports(), "metrics": registry.values()},
        more_ports=application.ports,
        reason=application.unready_reason,
        reload=application.reload,
        stop_deadline_s=config.stop_s_max,
        tracing=traces,
    )


def proxies_part(
    config: ProxyConfig,
    logs: LogsConfig,
    console: ConsoleConfig | None = None,
    tracing: TracingConfig = NO_TRACES,
) -> Part:
    """Several MQTT proxies on the same ports."""
    from lightmq.servers.proxy_pool import ProxyPool, ProxyPoolMetrics

    registry = Registry()
    pool = ProxyPool(config, logs, ProxyPoolMetrics(registry), tracing)
    return _keyed_part(
        "proxies",
        pool,
        config,
        console,
        registry=registry,
        status=lambda: {"ports": pool.ports(), "proxies": pool.status(), "metrics": registry.values()},
        more_ports=pool.ports,
        reload=pool.reload,
        stop_deadline_s=config.stop_s_max + 1.0,
    )


def bridge_part(config: BridgeConfig, console: ConsoleConfig | None = None) -> Part:
    """A bridge to other MQTT brokers."""
    from mqtt_bridge.app import BridgeApp

    registry = Registry()
    application = BridgeApp(config, clock=SystemClock(), registry=registry)
    return _keyed_part(
        "bridge",
        application,
        config,
        console,
        registry=registry,
        status=lambda: {**application.status(), "metrics": registry.values()},
        reason=application.reason,
    )


def grpc_part(config: GrpcConfig, console: ConsoleConfig | None = None) -> Part:
    """A proxy for RocketMQ's gRPC clients."""
    from grpc_proxy.app import GrpcProxyApp

    registry = Registry()
    application = GrpcProxyApp(config, clock=SystemClock(), registry=registry)
    return _keyed_part(
        "grpc",
        application,
        config,
        console,
        registry=registry,
        status=lambda: {"port": application.port, "metrics": registry.values()},
        port=("grpc", lambda: application.port),
        stop_deadline_s=config.stop_deadline_ms / 1_000 + 5.0,
    )
