"""Composition root of the gRPC proxy: builds every part, starts them in order, stops them.

The proxy stores nothing: any number of them may serve the same brokers, behind one address or several. Stopping lets
calls under way finish; streams and waiting receives end with it, and their clients go to another proxy.
Invariant: the port opens when a broker is connected and known by name. Loop rule: created and used on one event loop.
"""

from __future__ import annotations

import asyncio
import errno
from typing import Any

import grpc
import grpc.aio

from grpc_proxy.access import ClientAdmission
from grpc_proxy.brokers import BrokerGroups
from grpc_proxy.clients import GrpcClients
from grpc_proxy.config import GrpcConfig
from grpc_proxy.groups import ConsumedGroups
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
from remoting.protocol.errors import LocalMisuse
from remoting.transport.contracts import Connection
from remoting.transport.failures import join_address
from runtime.clock import Clock
from runtime.logs import get_logger
from runtime.metrics import Registry

PING_INTERVAL_MS_MIN = 5_000
"""Clients may test an idle connection this often."""


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
        self._receiving = receiving = Receiving(brokers, routes, groups, renewal, config, clock, metrics)
        self._service = MessagingService(
            admission,
            metrics,
            clients=clients,
            routes=routes,
            sending=Sending(brokers, routes, config, clock, metrics),
            receiving=receiving,
            offsets=Offsets(brokers, config, metrics),
            lite=LiteSubscriptionSync(brokers, routes, config),
        )
        metrics.brokers.function = lambda: brokers.up
        metrics.clients.function = lambda: len(clients)
        metrics.renewed.function = lambda: len(renewal)
        self._server: Any = None
        self._log = get_logger("grpc")

    @property
    def ready(self) -> bool:
        """Whether clients can be served: a broker group is connected."""
        return self.brokers.up > 0

    async def start(self) -> int:
        """Connect to the brokers, then listen; the port. Raises OSError when the address cannot be had, LocalMisuse for
        certificates that cannot be used."""
        await self.brokers.start()
        try:
            await self._admission.ask()
            self._server = self._make_server()
            self.port = self._open(self._server)
            await self._server.start()
        except BaseException:
            await self.brokers.stop()
            raise
        self.renewal.start()
        self._log.info("listening", host=self._config.host, port=self.port)
        return self.port

    async def settled(self) -> None:
        """Wait until messages that clients left unread have been given back."""
        await self._receiving.settle()

    async def stop(self) -> None:
        """Take no more calls, let those under way finish, close the connections to the brokers."""
        if self._server is not None:
            stopping = asyncio.ensure_future(self._server.stop(self._config.stop_deadline_ms / 1_000))
            self._clients.stop()
            self._receiving.stop()
            await stopping
            await self.renewal.stop()
        await self.brokers.stop()

    def _make_server(self) -> Any:
        limits = self._config.limits
        options = (
            ("grpc.so_reuseport", int(self._config.reuse_port)),
            ("grpc.max_receive_message_length", limits.request_bytes_max),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_metadata_size", limits.metadata_bytes_max),
            ("grpc.absolute_max_metadata_size", limits.metadata_bytes_max),
            ("grpc.max_concurrent_streams", limits.streams_per_connection_max),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_ping_interval_without_data_ms", PING_INTERVAL_MS_MIN),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", PING_INTERVAL_MS_MIN),
        )
        server = grpc.aio.server(options=options, maximum_concurrent_rpcs=limits.calls_max)
        server.add_generic_rpc_handlers((self._service.handlers(),))
        return server

    def _open(self, server: Any) -> int:
        address = join_address(self._config.host, self._config.port)
        credentials = self._credentials()
        try:
            if credentials is not None:
                return int(server.add_secure_port(address, credentials))
            return int(server.add_insecure_port(address))
        except RuntimeError as error:  # gRPC does not say why
            raise OSError(errno.EADDRINUSE, f"cannot listen on {address}") from error

    def _credentials(self) -> Any:
        config = self._config
        if config.tls_certificate is None or config.tls_key is None:
            return None
        try:
            pair = config.tls_key.read_bytes(), config.tls_certificate.read_bytes()
            authorities = None if config.tls_client_ca is None else config.tls_client_ca.read_bytes()
        except OSError as error:
            raise LocalMisuse(f"{error.filename}: {error.strerror}") from error
        return grpc.ssl_server_credentials(
            [pair], root_certificates=authorities, require_client_auth=authorities is not None
        )
