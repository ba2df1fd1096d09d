"""A private authority and a certificate for the parts of one installation, as PEM files.

Invariant: keys are written with mode 0600 and never leave the folder; an existing authority is reused, never
replaced, so that peers keep trusting it; a certificate is replaced as a whole.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from remoting.protocol.errors import LocalMisuse
from runtime.files import atomic_replace, make_directory

AUTHORITY, AUTHORITY_KEY = "ca.crt", "ca.key"
CERTIFICATE, KEY = "tls.crt", "tls.key"
AUTHORITY_DAYS = 3_650
NAMES_MAX = 1_000
"""Names of one certificate; more would make each handshake slow."""
BACKDATED = dt.timedelta(minutes=5)
"""For clocks of other machines that are behind."""
SECRET_MODE, PUBLIC_MODE = 0o600, 0o644
_RANGE = re.compile(r"\{(\d{1,4})\.\.(\d{1,4})\}")
_LABEL = re.compile(r"(\*|[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)")


@dataclass(frozen=True, slots=True)
class Made:
    """A certificate that was issued: its names, when it expires, and whether the authority is new."""

    names: tuple[str, ...]
    expires: dt.datetime
    new_authority: bool


def expand(pattern: str) -> list[str]:
    """`node-{0..2}.plant` as three names; other names as they are. Raises LocalMisuse."""
    found = _RANGE.search(pattern)
    if found is None:
        return [pattern]
    first, last = int(found[1]), int(found[2])
    if not 0 <= last - first < NAMES_MAX:
        raise LocalMisuse(f"{found[0]} in {pattern!r} counts up by at most {NAMES_MAX}")
    head, tail = pattern[: found.start()], pattern[found.end() :]
    return [name for number in range(first, last + 1) for name in expand(f"{head}{number}{tail}")]


def make(folder: Path, patterns: list[str], *, days: int, now: dt.datetime) -> Made:
    """An authority in the folder if there is none, and a certificate of it for these names.

    Raises LocalMisuse for a name that cannot be in a certificate and for an authority without its key, OSError.
    """
    names = tuple(dict.fromkeys(name for pattern in patterns for name in expand(pattern)))
    if not names or len(names) > NAMES_MAX:
        raise LocalMisuse(f"a certificate is for 1 to {NAMES_MAX} names, not {len(names)}")
    alternatives = [_alternative(name) for name in names]
    make_directory(folder, mode=0o700)
    new_authority = not (folder / AUTHORITY).exists()
    authority, authority_key = _new_authority(folder, now) if new_authority else _known_authority(folder)
    key = ec.generate_private_key(ec.SECP256R1())
    expires = min(now + dt.timedelta(days=days), authority.not_valid_after_utc)
    certificate = (
        _builder(names[0][:64], key, now, expires)
        .issuer_name(authority.subject)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    atomic_replace(folder / KEY, _pem(key), mode=SECRET_MODE)
    atomic_replace(folder / CERTIFICATE, certificate.public_bytes(serialization.Encoding.PEM), mode=PUBLIC_MODE)
    return Made(names, expires, new_authority)


def _new_authority(folder: Path, now: dt.datetime) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder("LightMQ private authority", key, now, now + dt.timedelta(days=AUTHORITY_DAYS))
    authority = (
        builder.issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "LightMQ private authority")]))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    atomic_replace(folder / AUTHORITY_KEY, _pem(key), mode=SECRET_MODE)
    atomic_replace(folder / AUTHORITY, authority.public_bytes(serialization.Encoding.PEM), mode=PUBLIC_MODE)
    return authority, key


def _known_authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        authority = x509.load_pem_x509_certificate((folder / AUTHORITY).read_bytes())
        key = serialization.load_pem_private_key((folder / AUTHORITY_KEY).read_bytes(), None)
    except FileNotFoundError:
        raise LocalMisuse(
            f"{folder / AUTHORITY} is there without {AUTHORITY_KEY}: put the key there, or choose another folder"
        ) from None
    except (ValueError, TypeError) as error:
        raise LocalMisuse(f"the authority in {folder} cannot be read: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != authority.public_key():
        raise LocalMisuse(f"{AUTHORITY_KEY} in {folder} is not the key of {AUTHORITY}")
    return authority, key


def _builder(
    common_name: str, key: ec.EllipticCurvePrivateKey, now: dt.datetime, expires: dt.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(expires)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    if len(name) > 253 or not all(map(_LABEL.fullmatch, name.split("."))):  # RFC 1035
        raise LocalMisuse(f"{name!r} is neither a host name nor an address")
    return x509.DNSName(name)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    made: bytes = key.private_bytes(encoding, form, serialization.NoEncryption())
    return made
