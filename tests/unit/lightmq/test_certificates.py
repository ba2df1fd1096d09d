"""The private authority: what it signs is trusted, its keys are private, and it stays when a certificate is renewed."""

from __future__ import annotations

import socket
import ssl
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from lightmq.certificates import AUTHORITY, AUTHORITY_KEY, CERTIFICATE, KEY, NAMES_MAX, expand, make
from remoting.protocol.errors import LocalMisuse
from runtime.clock import SystemClock

NOW = datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC)


def handshake(folder: Path, name: str) -> None:
    """A real one, by a client that trusts the authority and expects this name. Raises ssl.SSLError."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / CERTIFICATE, folder / KEY)
    client = ssl.create_default_context(cafile=str(folder / AUTHORITY))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    ours, theirs = socket.socketpair()

    def serve() -> None:
        try:
            server.wrap_socket(theirs, server_side=True).close()
        except OSError:
            theirs.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        client.wrap_socket(ours, server_hostname=name).close()
    finally:
        ours.close()
        thread.join(10)


def test_the_certificate_is_trusted_for_its_names_alone(tmp_path: Path) -> None:
    made = make(tmp_path / "tls", ["node-{0..2}.plant", "127.0.0.1", "*.example.org"], days=30, now=NOW)
    assert made.names == ("node-0.plant", "node-1.plant", "node-2.plant", "127.0.0.1", "*.example.org")
    assert made.new_authority
    for name in ("node-0.plant", "node-2.plant", "127.0.0.1", "a.example.org"):
        handshake(tmp_path / "tls", name)
    for name in ("node-3.plant", "127.0.0.2", "localhost"):
        with pytest.raises(ssl.SSLCertVerificationError):
            handshake(tmp_path / "tls", name)


def test_keys_are_private(tmp_path: Path) -> None:
    make(tmp_path / "tls", ["a"], days=30, now=NOW)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "tls").iterdir()}
    assert modes == {AUTHORITY: 0o644, AUTHORITY_KEY: 0o600, CERTIFICATE: 0o644, KEY: 0o600}
    assert (tmp_path / "tls").stat().st_mode & 0o777 == 0o700


def test_a_renewed_certificate_has_the_same_authority(tmp_path: Path) -> None:
    make(tmp_path, ["a"], days=30, now=NOW)
    authority, first = (tmp_path / AUTHORITY).read_bytes(), (tmp_path / CERTIFICATE).read_bytes()
    made = make(tmp_path, ["b"], days=9_999, now=NOW)
    assert not made.new_authority
    assert (tmp_path / AUTHORITY).read_bytes() == authority
    assert (tmp_path / CERTIFICATE).read_bytes() != first
    handshake(tmp_path, "b")
    limit = x509.load_pem_x509_certificate(authority).not_valid_after_utc
    assert made.expires == limit < NOW + timedelta(days=9_999)


def test_invalid_requests_are_refused(tmp_path: Path) -> None:
    for name in ("", "a b", "-a", "a..b", "a/b", "x" * 64):
        with pytest.raises(LocalMisuse, match="neither a host name nor an address"):
            make(tmp_path / "x", [name], days=1, now=NOW)
    for names in ([], ["n{0..999}", "last"]):
        with pytest.raises(LocalMisuse, match=f"1 to {NAMES_MAX} names"):
            make(tmp_path / "x", names, days=1, now=NOW)
    for pattern in ("a{3..1}", "a{0..1000}"):
        with pytest.raises(LocalMisuse, match="counts up"):
            expand(pattern)
    assert not (tmp_path / "x").exists()
    make(tmp_path / "one", ["a"], days=1, now=NOW)
    make(tmp_path / "two", ["a"], days=1, now=NOW)
    key = tmp_path / "one" / AUTHORITY_KEY
    key.write_bytes((tmp_path / "two" / AUTHORITY_KEY).read_bytes())
    with pytest.raises(LocalMisuse, match="is not the key of"):
        make(tmp_path / "one", ["a"], days=1, now=NOW)
    key.write_text("no key")
    with pytest.raises(LocalMisuse, match="cannot be read"):
        make(tmp_path / "one", ["a"], days=1, now=NOW)
    key.unlink()
    with pytest.raises(LocalMisuse, match=r"without ca\.key"):
        make(tmp_path / "one", ["a"], days=1, now=NOW)


def test_ranges() -> None:
    assert expand("a{1..2}-{8..9}") == ["a1-8", "a1-9", "a2-8", "a2-9"]
    assert expand("a") == ["a"]
