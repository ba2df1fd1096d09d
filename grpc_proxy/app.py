"""Composition root of the gRPC proxy: builds every part, starts them in order, stops them.

The proxy stores nothing: any number of them may serve the same brokers, behind one address or several. Stopping lets
calls under way finish; streams and waiting receives end with it, and their clients go to another proxy.
Invariant: the port opens when a broker is connected and known by name. Loop rule: created and used on one event loop.
"""

from __future__ import annotations

import asyncio

from grpc_proxy.access import ClientAdmission
from grpc_proxy.acknowledging import Acknowledging
from grpc_proxy.brokers import BrokerGroups
from grpc_proxy.clients import GrpcClients
from grpc_proxy.config import GrpcConfig
from grpc_proxy.groups import ConsumedGroups
from grpc_proxy.http2.limits import Http2Limits
from grpc_proxy.listening.call import CallRules
from grpc_proxy.listening.connection import ConnectionLimits, ConnectionUser
from grpc_proxy.listening.listener import GrpcListener
from grpc_proxy.lite import LiteSubscriptionSync
from grpc_proxy.metrics import GrpcMetrics
from grpc_proxy.offsets import Offsets
from grpc_proxy.receiving import Receiving
from grpc_proxy.renewal import Renewal
from grpc_proxy.routes import Routes
from grpc_proxy.sending import Sending
from grpc_proxy.service import MessagingService
from remoting.client.connection import signing_dial
from remoting.client.tls import ClientTls
from remoting.transport.certificates import CertificateFiles
from remoting.transport.contracts import Connection
from runtime.clock import Clock
from runtime.logs import get_logger
from runtime.metrics import Registry


class GrpcProxyApp:
    """One gRPC proxy; `connection` leads to a broker in this process, otherwise the configuration says which."""

    def __init__(
        self, config: GrpcConfig, *, clock: Clock, registry: Registry, connection: Connection | None = None
    ) -> None:
        self.port = config.port
        self._config = config
        metrics = GrpcMetrics(registry)
        dial = signing_dial(config.access_key_file, ClientTls.of(config.dial_tls))
        self.brokers = brokers = BrokerGroups(config, dial, present=connection)
        self._admission = admission = ClientAdmission(brokers, clock)
        groups = ConsumedGroups(brokers, clock)
        routes = Routes(brokers, groups, clock)
        self._clients = clients = GrpcClients(brokers, groups, config, metrics)
        self.renewal = renewal = Renewal(brokers, config, clock, metrics, clients.is_here)
        acknowledging = Acknowledging(brokers, renewal, metrics)
        self._receiving = receiving = Receiving(brokers, routes, groups, renewal, acknowledging, config, clock, metrics)
        self._service = MessagingService(
            admission,
            metrics,
            clients=clients,
            routes=routes,
            sending=Sending(brokers, routes, config, clock, metrics),
            receiving=receiving,
            acknowledging=acknowledging,
            offsets=Offsets(brokers, config, metrics),
            lite=LiteSubscriptionSync(brokers, routes, config),
        )
        metrics.brokers.function = lambda: brokers.up
        metrics.clients.function = lambda: len(clients)
        metrics.renewed.function = lambda: len(renewal)
        self._listener: GrpcListener | None = None
        self._metrics = metrics
        metrics.connections.function = lambda: 0 if self._listener is None else self._listener.connections
        self._log = get_logger("grpc")

    @property
    def ready(self) -> bool:
        """Whether clients can be served: a broker group is connected."""
        return self.brokers.up > 0

    async def start(self) -> int:
        """Connect to the brokers, then listen; the port. Raises OSError when the address cannot be had, LocalMisuse for
        certificates that cannot be used."""
        await self.brokers.start()
        config = self._config
        try:
            await self._admission.ask()
            listener = self._make_listener(self._metrics)
            self.port = await listener.start(config.host, config.port, reuse_port=config.reuse_port)
        except BaseException:
            await self.brokers.stop()
            raise
        self._listener = listener
        self.renewal.start()
        self._log.info("listening", host=config.host, port=self.port)
        return self.port

    async def settled(self) -> None:
        """Wait until messages that clients left unread have been given back."""
        await self._receiving.settle()

    async def stop(self) -> None:
        """Take no more calls, let those under way finish, close the connections to the brokers."""
        if self._listener is not None:
            stopping = asyncio.ensure_future(self._listener.stop(self._config.stop_deadline_ms / 1_000))
            self._clients.stop()
            self._receiving.stop()
            await stopping
            await self.renewal.stop()
        await self.brokers.stop()

    def _make_listener(self, metrics: GrpcMetrics) -> GrpcListener:
        limits = self._config.limits
        rules = CallRules(
            methods=self._service.methods(),
            calls_max=limits.calls_max,
            request_bytes_max=limits.request_bytes_max,
            held_bytes_max=max(limits.held_bytes_max, limits.request_bytes_max),
            fault=metrics.end_call,
        )
        http = Http2Limits(
            streams_max=limits.streams_per_connection_max,
            header_list_bytes_max=limits.metadata_bytes_max,
            resets_max=limits.resets_max,
            control_frames_max=limits.control_frames_max,
            budgets_per_address=limits.budgets_per_address,
            continuations_max=limits.continuations_max,
        )
        bounds = ConnectionLimits(
            output_bytes_max=limits.output_bytes_max,
            handshake_s_max=self._config.handshake_ms_max / 1_000,
            idle_s_max=self._config.idle_ms_max / 1_000,
            stall_s_max=self._config.stall_ms_max / 1_000,
        )
        shared = ConnectionUser(rules, http, bounds, metrics.end_connection)
        return GrpcListener(shared, self._tls(), limits.connections_max)

    def _tls(self) -> CertificateFiles | None:
        config = self._config
        if config.tls_certificate is None or config.tls_key is None:
            return None
        authorities = config.tls_client_ca
        return CertificateFiles(
            config.tls_certificate, config.tls_key, client_ca=authorities, client_required=authorities is not None,
            protocols=("h2",),
        )  # fmt: skip
