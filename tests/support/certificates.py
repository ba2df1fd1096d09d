"""Certificates for tests, made with openssl: an authority, and identities it signed.

Invariant: elliptic keys (a handshake costs a millisecond), valid for two days, nothing leaves the given folder.
"""

from __future__ import annotations

import shutil
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

HAVE_OPENSSL = shutil.which("openssl") is not None
_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


@dataclass(frozen=True)
class Identity:
    """A certificate with its key."""

    certificate: Path
    key: Path

    def context(self, authority: Path) -> ssl.SSLContext:
        """The TLS context of a client with this identity that trusts that authority."""
        made = ssl.create_default_context(cafile=str(authority))
        made.load_cert_chain(self.certificate, self.key)
        return made


class Authority:
    """Signs certificates."""

    def __init__(self, folder: Path, name: str = "test authority") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._made = 0
        self.certificate = folder / "authority.pem"
        self._key = folder / "authority.key"
        _openssl("req", "-x509", *_NEW_KEY, "-days", "2", "-subj", f"/CN={name}", "-keyout", self._key,
                 "-out", self.certificate)  # fmt: skip

    def issue(self, common_name: str = "localhost", names: str = "DNS:localhost,IP:127.0.0.1") -> Identity:
        """A certificate with these subject alternative names (none when empty)."""
        self._made += 1
        stem = self._folder / f"identity{self._made}"
        key, request, certificate = (stem.with_suffix(suffix) for suffix in (".key", ".csr", ".pem"))
        subject = f"/CN={common_name}" if common_name else "/O=nameless"
        extension = ("-addext", f"subjectAltName={names}") if names else ()
        _openssl("req", *_NEW_KEY, "-subj", subject, *extension, "-keyout", key, "-out", request)
        _openssl("x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self._key, "-CAcreateserial",
                 "-days", "2", "-copy_extensions", "copyall", "-out", certificate)  # fmt: skip
        return Identity(certificate, key)

    def trusting(self) -> ssl.SSLContext:
        """The TLS context of a client without a certificate."""
        return ssl.create_default_context(cafile=str(self.certificate))


def _openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
