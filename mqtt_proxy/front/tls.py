"""TLS of a listener: a context made of files, made anew when they change, and the name in a client's certificate.

Invariants: a connection keeps the context it began with, so a reload drops nobody; a context is only taken into use
whole (certificate, key and authorities fit), otherwise the one before stays and the log says why. At least TLS 1.2, no
renegotiation, no compression. No log line holds a part of a key.
Thread rule: the loop's thread; reading the files takes a millisecond and happens when they changed.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from mqtt_proxy.front.counters import FrontCounters
from remoting.protocol.errors import LocalMisuse
from runtime.logs import get_logger

LOOK_INTERVAL_MS = 2_000
"""How often the files are looked at. A change counts once two looks saw the same, so that half a pair is not taken."""

_SAN_KINDS = {"uri": "URI", "email": "email", "dns": "DNS"}


class CertificateProblem(LocalMisuse):
    """The files make no context: missing, unreadable, or not fitting each other."""


class TlsFiles:
    """The files of one TLS identity and the context made of them."""

    def __init__(
        self,
        certificate: Path,
        key: Path,
        *,
        counters: FrontCounters,
        client_ca: Path | None = None,
        client_required: bool = False,
        client_name: str = "san",
    ) -> None:
        """Reads the files. CertificateProblem when they cannot be used: do not start then."""
        self._certificate = certificate
        self._key = key
        self._client_ca = client_ca
        self._client_required = client_required
        self._client_name = client_name
        self._counters = counters
        self._log = get_logger("mqtt_proxy.tls")
        self._used = self._seen = self._fingerprint()
        self._looked_ms: int | None = None
        self.context = self._make()
        """What new connections use."""

    def name_of(self, certificate: Mapping[str, Any] | None) -> str | None:
        """Who a verified client certificate (as `getpeercert` gives it) says the client is; None without one."""
        return certificate_name(certificate, self._client_name) if certificate else None

    def look(self, now_ms: int) -> None:
        """Take the files into use if they have changed and rest; does nothing more often than every two seconds."""
        if self._looked_ms is not None and now_ms - self._looked_ms < LOOK_INTERVAL_MS:
            return
        self._looked_ms = now_ms
        found = self._fingerprint()
        rests, self._seen = found == self._seen, found
        if rests and found != self._used:
            self.reload()

    def reload(self) -> bool:
        """Read the files again; whether they are in use now. A problem keeps what there is, counted and logged."""
        self._used = self._seen = self._fingerprint()
        try:
            self.context = self._make()
        except CertificateProblem as problem:
            self._counters.certificate_failures.value += 1
            self._log.error("mqtt_certificate_unusable", problem=str(problem), consequence="the old one stays in use")
            return False
        self._counters.certificate_reloads.value += 1
        self._log.info("mqtt_certificate_read", certificate=str(self._certificate))
        return True

    def _make(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
        _using(
            f"certificate {self._certificate} with key {self._key}",
            lambda: context.load_cert_chain(self._certificate, self._key, password=_no_passphrase),
        )
        if self._client_ca is not None:
            authorities = self._client_ca
            _using(f"client authorities {authorities}", lambda: context.load_verify_locations(authorities))
            context.verify_mode = ssl.CERT_REQUIRED if self._client_required else ssl.CERT_OPTIONAL
        return context

    def _fingerprint(self) -> tuple[object, ...]:
        return tuple(_state(path) for path in (self._certificate, self._key, self._client_ca) if path is not None)


def _using(what: str, load: Callable[[], None]) -> None:
    """Run `load`; its failure in words that name the files and nothing in them."""
    try:
        load()
    except (OSError, ValueError) as error:
        raise CertificateProblem(f"{what}: {getattr(error, 'reason', None) or error}") from error


def _no_passphrase() -> str:
    raise ValueError("the key has a passphrase; a server that starts by itself cannot ask for it")


def _state(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def certificate_name(certificate: Mapping[str, Any], wanted: str) -> str | None:
    """The name of the wanted kind (san, cn, uri, email, dns) in a certificate; None when it has none.

    A name with a control character counts as none: C code elsewhere would read only a part of it.
    """
    kinds = list(_SAN_KINDS) if wanted == "san" else [wanted]
    for kind in kinds:
        if kind in _SAN_KINDS:
            found = _first(value for name, value in certificate.get("subjectAltName", ()) if name == _SAN_KINDS[kind])
            if found is not None:
                return found
    if wanted in ("san", "cn"):
        return _first(value for part in certificate.get("subject", ()) for name, value in part if name == "commonName")
    return None


def _first(values: Iterable[object]) -> str | None:
    for value in values:
        if isinstance(value, str) and value and value.isprintable():
            return value
    return None
