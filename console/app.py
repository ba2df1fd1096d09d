"""The console of one process: everything is made here, and attached to the administration port.

    Console(...)   -> a site for `runtime.admin.AdminServer`; `start` and `stop` go around the port's

aiohttp is imported when the site is attached, which happens after the port has imported it in a thread.
Invariant: without a way to make connections there is no console, so nothing here decides whether one is configured.
Loop rule: made and used on one event loop.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from console.cluster import BrokerGroupsView
from console.config import ConsoleConfig
from console.figures import OverviewFigures
from console.tokens import TokenFile
from console.viewers import ADMIN, Identities
from remoting.protocol.errors import LocalMisuse
from remoting.transport.certificates import CertificateFiles, CertificateProblem
from remoting.transport.contracts import Dial
from runtime.clock import Clock, SystemClock
from runtime.logs import get_logger
from runtime.metrics import Registry

if TYPE_CHECKING:
    from aiohttp import web

LOG = get_logger("console")


class Console:
    """The console and the HTTP API of one administration port."""

    def __init__(
        self,
        config: ConsoleConfig,
        *,
        identities: Identities,
        dial: Dial,
        controllers: Callable[[], tuple[str, ...]],
        directory: Path | None,
        clock: Clock,
        registry: Registry,
        mode: str,
        node: str,
        version: str,
    ) -> None:
        """`controllers`: addresses of name servers; `directory`: where token hashes are, None: nobody has a token."""
        self._config = config
        self._identities = identities
        self._clock = clock
        self._registry = registry
        self._tokens = None if directory is None else TokenFile(directory)
        self._cluster = BrokerGroupsView(dial, controllers)
        self._figures = OverviewFigures(
            self._cluster, clock, mode=mode, node=node, version=version, history_s=config.history_s
        )  # fmt: skip
        self.first_token = ""
        """The administrator token, if this start has made it."""

    async def start(self) -> None:
        """Sample figures from now on; the first start makes the administrator token. OSError."""
        if self._tokens is not None and not self._tokens.exists:
            self.first_token = self._tokens.renew(ADMIN)
        self._figures.start()

    async def stop(self) -> None:
        """End the figures and every connection to brokers."""
        await self._figures.stop()
        await self._cluster.close()

    def attach(self, application: web.Application) -> None:
        """Add the routes and what belongs to every answer."""
        from console.web.site import attach_all

        attach_all(
            application, self._config, cluster=self._cluster, figures=self._figures, identities=self._identities,
            tokens=self._tokens, clock=self._clock, registry=self._registry,
        )  # fmt: skip


class AdminCertificate(CertificateFiles):
    """The certificate of the administration port, read again when its files have changed."""

    def renewed(self) -> None:
        """Note in the log that the certificate in use is another one."""
        LOG.info("console_certificate_reloaded", certificate=str(self.certificate))

    def unusable(self, problem: CertificateProblem) -> None:
        """Log it; the certificate from before stays in use."""
        LOG.error("console_certificate_unusable", problem=str(problem), consequence="the one from before stays in use")


def admin_tls(config: ConsoleConfig, clock: Clock | None = None) -> ssl.SSLContext | None:
    """The TLS of the administration port, with or without a console; None: plain HTTP.

    A listener keeps its context, so each handshake looks whether the files have changed and takes the newest one.
    Raises LocalMisuse for a certificate that cannot be used.
    """
    certificate, key = config.tls.certificate, config.tls.key
    if certificate is None or key is None:
        return None
    try:
        files, time = AdminCertificate(certificate, key), clock or SystemClock()
    except CertificateProblem as error:
        raise LocalMisuse(f"console.tls: {error}") from error

    def newest(connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext) -> None:
        files.refresh(time.now_ms())
        connection.context = files.context

    context = files.context
    context.sni_callback = newest
    return context
