"""Configuration of TLS of the remoting protocol: how a port is listened on, how brokers and controllers are dialled.

Invariant: what contradicts itself (TLS enforced without a certificate, a client certificate asked for without an
authority) is refused when it is read, not when the first client comes. Values only.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from runtime.config import setting

MODES = ("disabled", "permissive", "enforcing")


@dataclass(frozen=True, kw_only=True)
class ListenTlsConfig:
    """TLS of a remoting port; one port serves both, the first byte of a connection shows which it is."""

    mode: str = setting("permissive", choices=MODES)
    """permissive: TLS is offered if there is a certificate, and clients without TLS are served too. enforcing: clients
    without TLS are refused. disabled: no TLS."""
    certificate: Path | None = None
    """The server's certificate and those up to its authority, PEM. Read again on SIGHUP and when it changes."""
    key: Path | None = None
    """The key of the certificate, PEM without a passphrase. Read again together with it."""
    client_ca: Path | None = None
    """Authorities of client certificates, PEM. A client may then show a certificate; a wrong one is refused."""
    client_required: bool = False
    """Refuse TLS clients without a certificate."""

    def __post_init__(self) -> None:
        if self.mode == "enforcing" and self.certificate is None:
            raise ValueError("tls.mode enforcing needs tls.certificate and tls.key")
        if (self.certificate is None) != (self.key is None):
            raise ValueError("tls.certificate and tls.key go together")
        if self.client_required and self.client_ca is None:
            raise ValueError("tls.client_required needs tls.client_ca, the authorities of client certificates")


@dataclass(frozen=True, kw_only=True)
class DialTlsConfig:
    """TLS of the connections this process makes to controllers and brokers."""

    enabled: bool = False
    """Connect with TLS. Required where their `tls.mode` is enforcing, advisable across any network."""
    ca: Path | None = None
    """Authorities that are trusted, PEM; not set: those of the system."""
    certificate: Path | None = None
    """Certificate to show, PEM, where `tls.client_ca` there asks for one."""
    key: Path | None = None
    """Its key, PEM without a passphrase; not set: it is in the same file."""
    server_name: str = ""
    """Name that the certificates must have; empty: the host that is connected to."""
    verify: bool = True
    """Check certificates and names. With false anyone in between can read and change everything: for tests only."""

    def __post_init__(self) -> None:
        if not self.enabled and (self.ca is not None or self.certificate is not None):
            raise ValueError("dial_tls.ca and dial_tls.certificate do nothing without dial_tls.enabled")
        if self.key is not None and self.certificate is None:
            raise ValueError("dial_tls.key needs dial_tls.certificate")
