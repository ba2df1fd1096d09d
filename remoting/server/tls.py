"""TLS of a remoting port: whether peers may, must or cannot use it, and the certificate they are shown.

    disabled     TLS is refused
    permissive   the first byte of a connection decides; RocketMQ's own default
    enforcing    connections without TLS get an error at their first request and are closed

Invariant: enforcing without a certificate cannot be made.
Thread rule: the loop's thread.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Protocol

from remoting.protocol.errors import LocalMisuse
from remoting.transport.certificates import CertificateFiles, CertificateProblem

LOG = logging.getLogger("remoting")

DISABLED, PERMISSIVE, ENFORCING = MODES = ("disabled", "permissive", "enforcing")


class ListenSettings(Protocol):
    """The part of a configuration about it."""

    @property
    def mode(self) -> str:
        """See the configuration."""
        ...

    @property
    def certificate(self) -> Path | None:
        """See the configuration."""
        ...

    @property
    def key(self) -> Path | None:
        """See the configuration."""
        ...

    @property
    def client_ca(self) -> Path | None:
        """See the configuration."""
        ...

    @property
    def client_required(self) -> bool:
        """See the configuration."""
        ...


class ServerTls(CertificateFiles):
    """The mode and the certificate of a port; several ports may share one."""

    def __init__(
        self,
        certificate: Path,
        key: Path,
        *,
        mode: str = PERMISSIVE,
        client_ca: Path | None = None,
        client_required: bool = False,
    ) -> None:
        """CertificateProblem when the files cannot be used."""
        super().__init__(certificate, key, client_ca=client_ca, client_required=client_required)
        assert mode in (PERMISSIVE, ENFORCING)
        self.mode = mode
        self.reloads = 0
        self.reload_failures = 0

    @classmethod
    def of(cls, settings: ListenSettings) -> ServerTls | None:
        """As configured; None where TLS is off. LocalMisuse when it is to be enforced and there is no certificate."""
        if settings.mode == DISABLED or (settings.mode == PERMISSIVE and settings.certificate is None):
            return None
        if settings.certificate is None or settings.key is None:
            raise LocalMisuse(f"tls.mode {settings.mode} needs tls.certificate and tls.key")
        return cls(
            settings.certificate,
            settings.key,
            mode=settings.mode,
            client_ca=settings.client_ca,
            client_required=settings.client_required,
        )

    def renewed(self) -> None:
        """Count and log that new files are in use."""
        self.reloads += 1
        LOG.info("certificate %s read again", self.certificate)

    def unusable(self, problem: CertificateProblem) -> None:
        """Count and log that new files are unusable."""
        self.reload_failures += 1
        LOG.error("certificate unusable, the old one stays in use: %s", problem)
