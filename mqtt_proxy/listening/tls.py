"""TLS of an MQTT listener: the files of its certificate, counted and logged, and the name in a client's certificate.

Invariant: what `CertificateFiles` says of contexts and reloads; a reload that fails is counted and logged, and the
certificate from before stays in use.
Thread rule: the loop's thread; reading the files takes a millisecond and happens when they changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mqtt_proxy.listening.counters import FrontCounters
from remoting.transport.certificates import LOOK_INTERVAL_MS, CertificateFiles, CertificateProblem
from runtime.logs import get_logger

__all__ = ["LOOK_INTERVAL_MS", "CertificateProblem", "TlsFiles", "certificate_name"]

_SAN_KINDS = {"uri": "URI", "email": "email", "dns": "DNS"}


class TlsFiles(CertificateFiles):
    """The files of one TLS identity, the context made of them, and who its clients say they are."""

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
        self._client_name = client_name
        self._counters = counters
        self._log = get_logger("mqtt_proxy.tls")
        super().__init__(certificate, key, client_ca=client_ca, client_required=client_required)

    def name_of(self, certificate: Mapping[str, Any] | None) -> str | None:
        """Who a verified client certificate (as `getpeercert` gives it) says the client is; None without one."""
        return certificate_name(certificate, self._client_name) if certificate else None

    def renewed(self) -> None:
        """Count and say that new files are in use."""
        self._counters.certificate_reloads.value += 1
        self._log.info("mqtt_certificate_read", certificate=str(self.certificate))

    def unusable(self, problem: CertificateProblem) -> None:
        """Count and say that new files are no use."""
        self._counters.certificate_failures.value += 1
        self._log.error("mqtt_certificate_unusable", problem=str(problem), consequence="the old one stays in use")


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
