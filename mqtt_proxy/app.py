"""Composition root of the proxy: builds every part, starts them in order, stops them without losing accepted messages.

Stopping: the listener closes every connection (wills are published, sessions report their offsets); the link to the
broker stays open until all of that is answered or the deadline passes. The proxy itself stores nothing.
Invariant: owners are registered before the notifier and the puller, so that after a reconnection sessions are reopened
before they read (`make_services`). Loop rule: created and used on one event loop.
"""

from __future__ import annotations

import asyncio

from mqtt_proxy.access.auth import AccessControl
from mqtt_proxy.access.gate import Gate, make_methods
from mqtt_proxy.config import ProxyConfig
from mqtt_proxy.delivery.delivery import DeliveryTools, Pump
from mqtt_proxy.delivery.offsets import OffsetCommitter
from mqtt_proxy.delivery.pull import Puller
from mqtt_proxy.delivery.record_cache import Notifier, RecordCache
from mqtt_proxy.history_steps import GroupReplicas, HistorySteps, StepsAtMaster, StepsAtReplicas
from mqtt_proxy.link import Link
from mqtt_proxy.listening.listener import Listener, Listening, drain
from mqtt_proxy.listening.open_sockets import OpenSockets
from mqtt_proxy.metrics import AccessCounters, FrontCounters, ProxyMetrics
from mqtt_proxy.mqtt.codec.limits import SessionLimits
from mqtt_proxy.operating import Operating
from mqtt_proxy.publishing.publisher import Publisher
from mqtt_proxy.quotas import Quotas
from mqtt_proxy.sessions.client import Client
from mqtt_proxy.sessions.openings import Openings
from mqtt_proxy.sessions.qos2 import Qos2Flows
from mqtt_proxy.sessions.services import Owners, Services
from mqtt_proxy.shared import SharedHub
from mqtt_proxy.sys_topics import SysTree, SysValues, version
from mqtt_proxy.tracing import ProxyTraces
from mqtt_proxy.wills import WillJudge
from remoting.client.connection import signing_dial
from remoting.client.tls import ClientTls
from remoting.client.uplink import Uplink
from remoting.tracing.spans import Tracer
from remoting.transport.contracts import Connection
from runtime.clock import Clock
from runtime.logs import get_logger
from runtime.metrics import Registry


def make_services(
    config: ProxyConfig,
    *,
    link: Link,
    history: HistorySteps,
    access: AccessControl,
    quotas: Quotas,
    clock: Clock,
    metrics: ProxyMetrics,
    counters: FrontCounters,
    tracer: Tracer | None = None,
) -> Services:
    """The parts that clients of a proxy on this link share; without a tracer there are no spans."""
    traces = None if tracer is None else ProxyTraces(tracer, metrics, clock.now_ns)
    openings = Openings(clock)
    owners = Owners(link, metrics, openings.taken_over)
    values = SysValues(metrics, counters, clock, lambda: len(owners))
    services = Services(
        config=config,
        metrics=metrics,
        link=link,
        history=history,
        owners=owners,
        tools=_delivery_tools(config, link, clock, metrics, traces),
        publisher=Publisher(link, config, clock, metrics, traces),
        access=access,
        clock=clock,
        quotas=quotas,
        exact=Qos2Flows(link, metrics),
        openings=openings,
        sys_tree=SysTree(values, link, interval_s=config.sys_interval_s),
    )
    WillJudge(link, access, metrics, send_publishes=services.publisher.send_now, keep=services.keep)
    return services


def _delivery_tools(
    config: ProxyConfig, link: Link, clock: Clock, metrics: ProxyMetrics, traces: ProxyTraces | None
) -> DeliveryTools:
    cache = RecordCache(config.cache_bytes_max)
    return DeliveryTools(
        cache,
        Notifier(link, cache, metrics.deliveries.delivery_s.observe, clock),
        Puller(link, cache, config, metrics),
        Pump(),
        OffsetCommitter(link, interval_ms=config.offsets_commit_interval_ms),
        metrics,
        clock,
        SharedHub(link, metrics),
        traces,
    )


FIRST_DELAY_DIVISOR = 20
"""The first pause before the broker is dialled again is the longest one divided by this; each further one doubles."""


class ProxyApp:
    """One MQTT proxy; `connection` leads to a broker in this process, otherwise the configuration gives its address."""

    def __init__(
        self,
        config: ProxyConfig,
        *,
        clock: Clock,
        registry: Registry,
        connection: Connection | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self._config = config
        dial = signing_dial(config.access_key_file, ClientTls.of(config.dial_tls))
        uplink = Uplink.configured(
            dial, config.broker, config.controllers, config.broker_name, present=connection,
            pause_first_ms=max(1, config.reconnect_delay_ms_max // FIRST_DELAY_DIVISOR),
            pause_ms_max=config.reconnect_delay_ms_max, has_mqtt=True,
        )  # fmt: skip
        self._link = Link(uplink)
        self._replica_steps: StepsAtReplicas | None = None
        if config.read_from != "master" and connection is None:
            by_distance = config.read_from == "nearest"
            replicas = GroupReplicas(config.controllers, dial, lambda: uplink.broker_name, by_distance=by_distance)
            self._replica_steps = StepsAtReplicas(self._link, replicas)
        self._log = get_logger("proxy")
        metrics = ProxyMetrics(registry)
        counters = FrontCounters(registry)
        access = AccessCounters(registry)
        methods, partly = make_methods(config, clock=clock, counters=access, link=self._link), config.access.thins
        self._gate = Gate(methods, config.acl_file, clock=clock, counters=access, partly=partly)
        quotas = Quotas(config.quotas)
        self._services = make_services(
            config,
            link=self._link,
            history=self._replica_steps or StepsAtMaster(self._link),
            access=self._gate,
            quotas=quotas,
            clock=clock,
            metrics=metrics,
            counters=counters,
            tracer=tracer,
        )
        limits = session_limits(config)
        self._operating = Operating(self._services, version(), registry.values, limits.delay)
        self._listener = self._make_listener(clock, counters, quotas, limits)
        self._listening = Listening(config, self._listener, counters)
        self._gate.on_change(self._services.owners.rules_changed)
        self._declare_gauges(registry)

    def _make_listener(self, clock: Clock, counters: FrontCounters, quotas: Quotas, limits: SessionLimits) -> Listener:
        config = self._config
        return Listener(
            lambda wire: Client(wire, self._services),
            clock=clock,
            limits=limits,
            counters=counters,
            sockets=OpenSockets(
                counters,
                quotas,
                connections_max=config.connections_max,
                connections_per_address_max=config.quotas.connections_per_address_max,
            ),
            output_bytes_max=config.output_bytes_max,
            reuse_port=config.listen.reuse_port,
        )

    def _declare_gauges(self, registry: Registry) -> None:
        owners, tools = self._services.owners, self._services.tools
        registry.gauge("rocketmq_mqtt_sessions", "Connected MQTT sessions", function=lambda: len(owners))
        registry.gauge("rocketmq_mqtt_followed_queues", "Queues followed", function=lambda: len(tools.notifier.feeds))
        registry.gauge(
            "rocketmq_mqtt_shared_members", "Members of shared subscriptions", function=lambda: len(tools.shared)
        )
        registry.gauge("rocketmq_mqtt_cache_bytes", "Pulled records kept", function=lambda: tools.cache.size_bytes)
        registry.gauge(
            "rocketmq_mqtt_unconfirmed_bytes",
            "Published bytes the broker has not confirmed",
            function=lambda: self._services.publisher.pending_bytes,
        )

    @property
    def ready(self) -> bool:
        """Whether clients can be served: the broker is connected."""
        return self._link.up

    def unready_reason(self) -> str:
        """Why clients cannot be served; empty when they can."""
        return self._link.reason

    async def start(self) -> int:
        """Connect to the broker, then listen; the first MQTT port. Raises OSError when an address cannot be had."""
        await self._link.start()
        await self._link.wait_up()
        try:
            await self._listening.start()
        except OSError:
            await self._link.stop()
            raise
        self._services.sys_tree.start()
        self._gate.start()
        self._operating.opened(self._listening.ports)
        return self.port

    @property
    def port(self) -> int:
        """The first open MQTT port, without TLS where there is such a listener; 0 before the start."""
        return next(iter(self._listening.ports.values()), 0)

    def ports(self) -> dict[str, int]:
        """Open MQTT ports by protocol: mqtt, mqtt-tls, mqtt-ws, mqtt-wss."""
        return {"mqtt" if name == "tcp" else f"mqtt-{name}": port for name, port in self._listening.ports.items()}

    def reload(self) -> None:
        """Read the files again that may change while the proxy runs. A bad file is logged, and its old contents stay in
        use."""
        self._gate.reload()
        self._listener.reload()

    async def stop(self) -> None:
        """Disconnect all clients, wait until wills and session states are confirmed, then close the link to the
        broker."""
        deadline_s = self._config.stop_deadline_ms / 1000
        listen = self._config.listen
        await drain(
            self._listener,
            interval_ms=listen.drain_interval_ms,
            server_reference=listen.server_reference,
            moved=listen.server_moved,
        )
        await self._listener.stop(deadline_s)
        self._services.tools.offsets.stop()
        self._services.exact.stop()
        self._services.sys_tree.stop()
        try:
            await asyncio.wait_for(self._settled(), deadline_s)
        except TimeoutError:
            self._log.warning("stop_deadline_missed", unconfirmed_bytes=self._services.publisher.pending_bytes)
        if self._replica_steps is not None:
            await self._replica_steps.close()
        await self._link.stop()
        await self._gate.close()

    async def _settled(self) -> None:
        """Wait until every request to the broker has been answered."""
        await self._services.publisher.drain()
        while self._services.tasks:
            await asyncio.wait(self._services.tasks)


def session_limits(config: ProxyConfig) -> SessionLimits:
    """The limits of one session, as configured."""
    return SessionLimits(
        packet_size_bytes_max=config.packet_size_bytes_max,
        in_flight_max=config.in_flight_max,
        connect_deadline_ms=config.connect_timeout_ms,
        topic_bytes_max=config.quotas.topic_bytes_max,
        topic_levels_max=config.quotas.topic_levels_max,
        user_properties_max=config.quotas.user_properties_max,
        receive_maximum=config.quotas.receive_maximum,
        topic_alias_maximum=config.quotas.topic_alias_max,
    )
