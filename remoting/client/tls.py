"""TLS to a server: trusted authorities, the client's certificate, and the name expected in the server's certificate.

Invariant: the server's certificate and name are checked unless `verify` is explicitly false. Comparable and
picklable, so that it can be a key of a pool and be sent to Spark's tasks; contexts are made where they are used, once
per process. ssl is imported where it is used, because processes without TLS start faster without it. Thread rule: plain
values; making a context reads the files.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from remoting.transport.failures import TlsFailed, Unreachable, reason_of

if TYPE_CHECKING:
    import ssl

CONTEXTS_MAX = 64
"""Contexts cached per process."""


class DialSettings(Protocol):
    """The TLS part of a configuration."""

    @property
    def enabled(self) -> bool:
        """See the configuration."""
        ...

    @property
    def ca(self) -> Path | None:
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
    def server_name(self) -> str:
        """See the configuration."""
        ...

    @property
    def verify(self) -> bool:
        """See the configuration."""
        ...


@dataclass(frozen=True, slots=True)
class ClientTls:
    """How to connect with TLS."""

    ca_file: Path | None = None
    """Trusted authorities; None: those of the system."""
    certificate_file: Path | None = None
    key_file: Path | None = None
    server_name: str = ""
    """Name in the server's certificate; empty: the host dialled."""
    verify: bool = True
    """False skips certificate verification: the connection is encrypted, but the peer may be an impostor."""

    @classmethod
    def of(cls, settings: DialSettings) -> ClientTls | None:
        """Return the configured TLS; None when it is off."""
        if not settings.enabled:
            return None
        return cls(settings.ca, settings.certificate, settings.key, settings.server_name, settings.verify)

    def context(self) -> ssl.SSLContext:
        """Return the context of connections. Raises CertificateProblem when the files cannot be used."""
        return _context(self, tuple(_stamp(path) for path in (self.ca_file, self.certificate_file, self.key_file)))

    def name_for(self, host: str) -> str:
        """Return the name expected in the certificate of this host."""
        return self.server_name or host


@contextmanager
def handshake_with(host: str, port: int) -> Iterator[None]:
    """Translate errors of a handshake: TlsFailed when a retry cannot help, else Unreachable."""
    import ssl

    try:
        yield
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError, ConnectionError) as error:
        ended = OSError("the connection ended during the TLS handshake: does that port speak TLS?")
        raise Unreachable(host, port, ended) from error
    except (ssl.SSLError, ssl.CertificateError) as error:
        raise TlsFailed(host, port, reason_of(error)) from error


def is_verdict(error: OSError) -> bool:
    """Whether a connection with TLS ended because the peer or this side rejected it, not because its bytes ended."""
    import ssl

    return isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError)


def _stamp(path: Path | None) -> int:
    """Return a value that changes with the file; a missing file is reported when it is read."""
    try:
        return path.stat().st_mtime_ns if path is not None else 0
    except OSError:
        return 0


@functools.lru_cache(CONTEXTS_MAX)
def _context(tls: ClientTls, _stamps: tuple[int, ...]) -> ssl.SSLContext:
    """Return a cached context; a changed file makes a new one, since certificates are renewed while a process runs."""
    import ssl

    from remoting.transport.certificates import load_authorities, load_pair

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif tls.ca_file is not None:
        load_authorities(context, tls.ca_file, "authorities")
    else:
        context.load_default_certs()
    if tls.certificate_file is not None:
        load_pair(context, tls.certificate_file, tls.key_file or tls.certificate_file)
    return context
