"""Controller, broker, MQTT proxy and, where configured, gRPC proxy and bridge in one loop: what ``lightmq up`` runs.

The parts are the same as in separate processes and meet on the in-process twin of the transport; one remoting port
answers the codes of both the controller (name server) and the broker. Order of start: data directory lock, controller,
broker (recovery), remoting port, registration, MQTT, gRPC, bridge, administration port; the stop is the reverse.
Invariant: the data directory belongs to one process; ``broker/`` and ``controller/`` below it are what the separate
processes would use. Loop rule: made and used on one event loop.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker.app import BrokerApp
from broker.roles.serving import intake_limits, open_vip_port
from console.app import Console, admin_tls
from controller.app import ControllerApp
from grpc_proxy.metrics import GrpcMetrics
from lightmq.configuration import Configuration
from lightmq.servers.proxy_pool import ProxyPool, ProxyPoolMetrics
from lightmq.servers.serving import client_host, explain
from lightmq.servers.tracing import Tracing
from lightmq.version import VERSION
from mqtt_bridge.app import BridgeApp
from mqtt_proxy.app import ProxyApp
from mqtt_proxy.listening.listener import PortUnavailable
from remoting import inprocess
from remoting.access.rights import page_actions
from remoting.protocol.errors import LightMQError, LocalMisuse
from remoting.server.authorizer import TRUSTED_ATTRIBUTE
from remoting.server.router import Router
from remoting.server.server import PageAccess, RemotingServer
from remoting.server.traced import traced
from remoting.transport.certificates import ENFORCING, ServerTls
from remoting.transport.contracts import Connection, Handler
from runtime.admin import AdminServer
from runtime.clock import Clock, SystemClock
from runtime.faults import parse_faults
from runtime.files import DirectoryLock, make_directory
from runtime.logs import get_logger
from runtime.metrics import Registry, RequestTimes, declare_port_metrics
from runtime.service import ServiceGroup

if TYPE_CHECKING:
    from grpc_proxy.app import GrpcProxyApp

FAULTS_VARIABLE = "LIGHTMQ_FAULTS"
"""For tests of whole processes only: named faults, see ``runtime.faults.parse_faults``."""
REGISTERED_TIMEOUT_S = 10.0
"""Longest wait for the broker's own registration; it happens in this process and takes milliseconds."""
REGISTERED_POLL_S = 0.002


def _trusted(connection: inprocess.InProcessConnection) -> inprocess.InProcessConnection:
    """A part of this process: it applies its own rules to its clients."""
    connection.peer.attributes[TRUSTED_ATTRIBUTE] = True
    return connection


class AllInOne:
    """One whole installation in this process."""

    def __init__(self, configuration: Configuration, *, clock: Clock | None = None) -> None:
        self._configuration = configuration
        self._clock = clock or SystemClock()
        self._registry = Registry()
        self._group = ServiceGroup()
        self._lock: DirectoryLock | None = None
        up = configuration.up
        rules = one_access_list(configuration)
        self._tracing = Tracing(configuration.tracing, "lightmq", self._registry)
        self._broker = BrokerApp(
            dataclasses.replace(
                configuration.broker, data_directory=up.data_directory / "broker", host=up.host, access_list=rules
            ),
            clock=self._clock,
            registry=self._registry,
            faults=parse_faults(os.environ.get(FAULTS_VARIABLE, "")),
            connect_controller=self._connect,
            listen=False,
            tracer=self._tracing.tracer,
        )
        self._controller = ControllerApp(
            dataclasses.replace(
                configuration.controller, data_directory=up.data_directory / "controller", access_list=rules
            ),
            clock=self._clock,
            registry=self._registry,
            listen=False,
            policy=self._broker.policy,
        )
        self._proxy: ProxyApp | ProxyPool | None = None
        # Declared also where there are no such processes and no port for gRPC, so that every page has the same names.
        ProxyPoolMetrics(self._registry)
        GrpcMetrics(self._registry)
        self._bridge: BridgeApp | None = None
        self._grpc: GrpcProxyApp | None = None
        guard = PageAccess(self._broker.access, self._broker.authorizer, page_actions())
        self._console = self._make_console(guard)
        self._admin = AdminServer(
            up.host, up.admin_port, registry=self._registry, hosts=up.admin_hosts, guard=guard, site=self._console,
            readiness=self._group.readiness, status=self.status,
            reasons=lambda: {
                "broker": self._broker.unready_reason(), "bridge": self._bridge.reason() if self._bridge else "",
            },
            degraded=lambda: {"broker": self._broker.degraded_reason()}, tls=admin_tls(configuration.console),
        )  # fmt: skip
        self._server: RemotingServer | None = None
        self._vip_port = 0
        self._router: Router | None = None

    async def start(self) -> None:
        """Start every part; raises what kept one from starting, with everything stopped again."""
        up = self._configuration.up
        make_directory(up.data_directory)
        self._lock = DirectoryLock(up.data_directory)
        try:
            if self._tracing.tracer is not None:
                await self._group.begin("tracing", self._tracing)
            await self._group.begin("controller", self._controller, ready=self._controller.ready)
            await self._group.begin("broker", self._broker, ready=self._broker.ready)
            assert self._broker.broker is not None
            acts = self._broker.broker.audit  # what operators do at the controller is recorded by the broker
            table = merged(acts.watching(self._controller.handlers), self._broker.handlers)
            self._router = Router(
                traced(table, self._tracing.tracer, self._clock.now_ns), access=self._broker.access,
                not_offered=self._broker.not_offered,
                advertised_host=self._configuration.broker.advertised_host, took=RequestTimes(self._registry),
            )  # fmt: skip
            self._server = self._make_server(self._router)
            declare_port_metrics(self._registry, self._server)
            await self._group.begin("remoting", _Port(self._open_remoting, self._server.stop))
            await self._registered()
            await self._controller.plane.place_mqtt(self._configuration.broker.broker_name)
            proxy = self._proxy = self._make_proxy(self._router, self._server)
            await self._group.begin(
                "proxy", _Port(self._open_mqtt, proxy.stop), ready=lambda: proxy.ready,
                stop_deadline_s=self._configuration.proxy.stop_s_max + 1.0,
            )  # fmt: skip
            await self._start_grpc(self._router)
            await self._start_bridge(self._router)
            await self._group.begin("admin", _Port(self._open_admin, self._close_admin))
            self._vip_port = await self._open_vip_port(self._server)  # last: it must not take a port of another part
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop every part, last first, and free the data directory."""
        await self._group.stop()
        if self._lock is not None:
            self._lock.close()

    async def until_failed(self) -> Exception:
        """Wait until the broker cannot write its log any more; return why."""
        return await self._broker.until_failed()

    def unready(self) -> Mapping[str, str]:
        """Part -> why it does not do its work now."""
        return self._admin.unready()

    def ports(self) -> Mapping[str, int]:
        """Open ports by protocol."""
        assert self._server is not None
        assert self._proxy is not None
        ports = {"remoting": self._server.port, "admin": self._admin.port}
        ports |= {"vip": self._vip_port} if self._vip_port else {}
        ports |= {"grpc": self._grpc.port} if self._grpc else {}
        return ports | self._broker.reader_ports() | self._proxy.ports()

    def notes(self) -> Mapping[str, str]:
        """What is said with the ports: the administrator token, if this start made it."""
        token = "" if self._console is None else self._console.first_token
        return {"console_token": token} if token else {}

    def reload(self) -> None:
        """Read again what may change while this runs."""
        if self._server is not None:
            self._server.reload()
        if self._proxy is not None:
            self._proxy.reload()

    def status(self) -> dict[str, Any]:
        """The picture of the administration page."""
        return {
            "controller": self._controller.status(),
            "broker": self._broker.status(),
            "bridge": {} if self._bridge is None else self._bridge.status(),
            "ports": dict(self.ports()),
            "proxies": self._proxy.status() if isinstance(self._proxy, ProxyPool) else [],
            "metrics": self._registry.values(),
        }

    def _make_proxy(self, router: Router, server: RemotingServer) -> ProxyApp | ProxyPool:
        """One proxy in this process, or several beside it that connect to the broker's port."""
        config = self._configuration.proxy
        if config.listen.processes > 1:
            if self._configuration.broker.tls.mode == ENFORCING and not config.dial_tls.enabled:
                raise LocalMisuse(
                    "broker.tls.mode is enforcing, and proxies of their own processes come without TLS: set "
                    "proxy.dial_tls.enabled, with proxy.dial_tls.ca for an authority of your own"
                )
            broker = f"{client_host(self._configuration.up.host)}:{server.port}"
            made = dataclasses.replace(config, broker=broker)
            given = self._configuration
            return ProxyPool(made, given.logs, ProxyPoolMetrics(self._registry), given.tracing)
        connection = _trusted(inprocess.connect(router))
        return ProxyApp(
            config, clock=self._clock, registry=self._registry, connection=connection, tracer=self._tracing.tracer
        )

    def _make_server(self, router: Handler) -> RemotingServer:
        limits = self._configuration.broker.limits
        return RemotingServer(
            router,
            frame_size_bytes_max=limits.frame_size_bytes_max,
            output_bytes_max=limits.connection_output_bytes_max,
            connections_max=limits.connections_max,
            tls=ServerTls.of(self._configuration.broker.tls),
            access=self._broker.access,
            intake=intake_limits(limits),
        )

    async def _connect(self, _address: str) -> Connection:
        """The broker's way to the controller, whatever address is given; it needs no key."""
        assert self._router is not None
        return _trusted(inprocess.connect(self._router))

    async def _open_remoting(self) -> None:
        assert self._server is not None
        up = self._configuration.up
        try:
            port = await self._server.start(up.host, up.remoting_port)
        except OSError as error:
            raise explain(up.host, up.remoting_port, "--remoting-port", error) from error
        self._controller.announce(up.host, port)
        self._broker.announce(self._configuration.broker.advertised_host or up.host, port, (inprocess.ADDRESS,))

    async def _open_vip_port(self, server: RemotingServer) -> int:
        up = self._configuration.up
        broker = self._configuration.broker
        config = dataclasses.replace(broker, host=up.host, port=up.remoting_port, admin_port=up.admin_port)
        return await open_vip_port(server, config, get_logger("remoting"))

    async def _open_mqtt(self) -> None:
        assert self._proxy is not None
        try:
            await self._proxy.start()
        except PortUnavailable as error:
            raise explain(error.host, error.port, error.option, error) from error

    def _make_console(self, guard: PageAccess) -> Console | None:
        config, up = self._configuration.console, self._configuration.up
        if not config.enabled:
            return None
        return Console(
            config, identities=guard, dial=self._connect, controllers=lambda: (inprocess.ADDRESS,),
            directory=up.data_directory, clock=self._clock, registry=self._registry, mode="all in one process",
            node=self._configuration.broker.broker_name, version=VERSION,
        )  # fmt: skip

    async def _close_admin(self) -> None:
        await self._admin.stop()
        if self._console is not None:
            await self._console.stop()

    async def _open_admin(self) -> None:
        if self._console is not None:
            await self._console.start()
        try:
            await self._admin.start()
        except OSError as error:
            raise explain(self._admin.host, self._admin.port, "--admin-port", error) from error

    async def _start_grpc(self, router: Router) -> None:
        """The port for RocketMQ's gRPC clients, if one is set."""
        port, config = self._configuration.up.grpc_port, self._configuration.grpc
        if port is None:
            return
        from grpc_proxy.app import GrpcProxyApp

        application = self._grpc = GrpcProxyApp(
            dataclasses.replace(config, port=port), clock=self._clock, registry=self._registry,
            connection=_trusted(inprocess.connect(router)),
        )  # fmt: skip
        try:
            await self._group.begin(
                "grpc", application, ready=lambda: application.ready,
                stop_deadline_s=config.stop_deadline_ms / 1_000 + 5.0,
            )  # fmt: skip
        except OSError as error:
            raise explain(config.host, port, "--grpc-port", error) from error

    async def _start_bridge(self, router: Router) -> None:
        """A peer that is away does not make this installation unready: see the reasons on /readyz."""
        self._bridge = BridgeApp(
            self._configuration.bridge,
            clock=self._clock,
            registry=self._registry,
            connection=_trusted(inprocess.connect(router)),
        )
        if self._configuration.bridge.connections:
            await self._group.begin("bridge", self._bridge)

    async def _registered(self) -> None:
        """Return when the broker is in the controller's routes, so that the first client finds it."""
        async with asyncio.timeout(REGISTERED_TIMEOUT_S):
            while not self._broker.readiness()["registration"]:  # noqa: ASYNC110  # up in milliseconds
                await asyncio.sleep(REGISTERED_POLL_S)


@dataclasses.dataclass(frozen=True, slots=True)
class _Port:
    """Two functions as a service."""

    start: Callable[[], Coroutine[Any, Any, None]]
    stop: Callable[[], Coroutine[Any, Any, None]]


def one_access_list(configuration: Configuration) -> Path | None:
    """The access list of the port that both answer. Raises LocalMisuse when each has one of its own."""
    lists = {configuration.broker.access_list, configuration.controller.access_list} - {None}
    if len(lists) > 1:
        raise LocalMisuse(
            "broker.access_list and controller.access_list name two files, but `up` has one port for both: name one"
        )
    return lists.pop() if lists else None


def merged(controller: Mapping[int, Handler], broker: Mapping[int, Handler]) -> dict[int, Handler]:
    """One table of both; a code that both answer would make the port's meaning depend on the order of two arguments."""
    both = sorted(set(controller) & set(broker))
    if both:
        raise LightMQError(f"controller and broker both answer the codes {both}")
    return {**controller, **broker}
