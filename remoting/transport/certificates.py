"""TLS contexts of a listener, made from files and again when those change; and how a remoting port uses TLS.

    disabled     TLS is refused
    permissive   the first byte of a connection decides; RocketMQ's own default
    enforcing    connections without TLS get an error at their first request and are closed

Invariants: a connection keeps the context it began with, so a reload drops no connection; a context is used only as a
whole (certificate, key and authorities fit), otherwise the previous one stays and the owner gets the reason; enforcing
needs a certificate. At least TLS 1.2, no renegotiation, no compression. No error text contains part of a key. Thread
rule: the loop's thread; reading the files takes a millisecond and happens only when they have changed.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from remoting.protocol.errors import LocalMisuse

LOOK_INTERVAL_MS = 2_000
"""Interval of checks for changes. A change counts once two checks see the same, so that half a pair is not taken."""


class CertificateProblem(LocalMisuse):
    """The files cannot be used: missing, unreadable, or not matching each other."""


class CertificateFiles:
    """The files of one TLS identity and the context made from them. A subclass may count and log reloads."""

    def __init__(
        self,
        certificate: Path,
        key: Path,
        *,
        client_ca: Path | None = None,
        client_required: bool = False,
        protocols: Sequence[str] = (),
    ) -> None:
        """Read the files. Raises CertificateProblem when they cannot be used.

        `protocols`: offered by ALPN.
        """
        self.certificate = certificate
        self._protocols = list(protocols)
        self._key = key
        self._client_ca = client_ca
        self._client_required = client_required
        self._used = self._seen = self._fingerprint()
        self._looked_ms: int | None = None
        self.context = self._make()
        """The context of new connections."""

    def renewed(self) -> None:
        """Called when new files have come into use."""

    def unusable(self, problem: CertificateProblem) -> None:
        """Called when new files cannot be used, and the old context stays in use."""

    def refresh(self, now_ms: int) -> None:
        """Reload the files if they have changed and settled; checks at most every LOOK_INTERVAL_MS."""
        if self._looked_ms is not None and now_ms - self._looked_ms < LOOK_INTERVAL_MS:
            return
        self._looked_ms = now_ms
        found = self._fingerprint()
        rests, self._seen = found == self._seen, found
        if rests and found != self._used:
            self.reload()

    def reload(self) -> bool:
        """Read the files again; return whether they are in use now. On a problem the old context stays."""
        self._used = self._seen = self._fingerprint()
        try:
            self.context = self._make()
        except CertificateProblem as problem:
            self.unusable(problem)
            return False
        self.renewed()
        return True

    def _make(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
        if self._protocols:
            context.set_alpn_protocols(self._protocols)
        load_pair(context, self.certificate, self._key)
        if self._client_ca is not None:
            load_authorities(context, self._client_ca, "client authorities")
            context.verify_mode = ssl.CERT_REQUIRED if self._client_required else ssl.CERT_OPTIONAL
        return context

    def _fingerprint(self) -> tuple[object, ...]:
        return tuple(_state(path) for path in (self.certificate, self._key, self._client_ca) if path is not None)


def load_pair(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    """Load this certificate into a context. Raises CertificateProblem with the files' names, never their content."""
    _using(
        f"certificate {certificate} with key {key}",
        lambda: context.load_cert_chain(certificate, key, password=_no_passphrase),
    )


def load_authorities(context: ssl.SSLContext, path: Path, what: str) -> None:
    """Make a context trust the authorities of a file. Raises CertificateProblem."""
    _using(f"{what} {path}", lambda: context.load_verify_locations(path))


def _using(what: str, load: Callable[[], None]) -> None:
    try:
        load()
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise CertificateProblem(f"{what}: {reason}") from error


def _no_passphrase() -> str:
    raise ValueError("the key has a passphrase, which a service cannot prompt for")


def _state(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


LOG = logging.getLogger("remoting")

DISABLED, PERMISSIVE, ENFORCING = MODES = ("disabled", "permissive", "enforcing")


class ListenSettings(Protocol):
    """The TLS part of a configuration."""

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
        """Read the files. Raises CertificateProblem when they cannot be used."""
        super().__init__(certificate, key, client_ca=client_ca, client_required=client_required)
        assert mode in (PERMISSIVE, ENFORCING)
        self.mode = mode
        self.reloads = 0
        self.reload_failures = 0

    @classmethod
    def of(cls, settings: ListenSettings) -> ServerTls | None:
        """Return the configured TLS, None when it is off. LocalMisuse when a mode needs a certificate and has none."""
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
        LOG.info("certificate %s reloaded", self.certificate)

    def unusable(self, problem: CertificateProblem) -> None:
        """Count and log that new files are unusable."""
        self.reload_failures += 1
        LOG.error("certificate unusable, the old one stays in use: %s", problem)
