"""TLS files: contexts, their renewal, and names in client certificates."""

from __future__ import annotations

import os
import shutil
import ssl
from pathlib import Path

import pytest

from mqtt_proxy.listening.handshakes import LOOK_INTERVAL_MS, CertificateProblem, TlsFiles, certificate_name
from mqtt_proxy.metrics import FrontCounters
from runtime.metrics import Registry
from tests.support.certificates import HAVE_OPENSSL, Authority, Identity

pytestmark = pytest.mark.skipif(not HAVE_OPENSSL, reason="makes its certificates with openssl")


def files(identity: Identity, **options: object) -> TlsFiles:
    return TlsFiles(identity.certificate, identity.key, counters=FrontCounters(Registry()), **options)  # type: ignore[arg-type]


def replace(identity: Identity, by: Identity) -> None:
    shutil.copy(by.certificate, identity.certificate)
    shutil.copy(by.key, identity.key)


def serial(context: ssl.SSLContext, authority: Authority) -> object:
    """The serial number of the certificate that a client with this context gets."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(to_server, to_client, server_side=True)
    client = authority.trusting().wrap_bio(to_client, to_server, server_hostname="localhost")
    for _ in range(4):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    found = client.getpeercert()
    assert found
    return found["serialNumber"]


def test_at_least_tls_1_2_and_no_renegotiation(tmp_path: Path) -> None:
    """A client cannot ask for either."""
    context = files(Authority(tmp_path).issue()).context
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.options & ssl.OP_NO_RENEGOTIATION
    assert context.options & ssl.OP_NO_COMPRESSION
    assert context.verify_mode is ssl.CERT_NONE


def test_client_certificates_requested_or_required(tmp_path: Path) -> None:
    """With authorities a certificate is requested, otherwise not."""
    authority = Authority(tmp_path)
    identity = authority.issue()
    assert files(identity, client_ca=authority.certificate).context.verify_mode is ssl.CERT_OPTIONAL
    assert (
        files(identity, client_ca=authority.certificate, client_required=True).context.verify_mode is ssl.CERT_REQUIRED
    )
    with pytest.raises(CertificateProblem, match="authorities"):
        files(identity, client_ca=identity.key)


def test_files_that_make_no_context(tmp_path: Path) -> None:
    """Missing, empty, of another pair, or with a passphrase: reported at the start with the names of the files."""
    authority = Authority(tmp_path)
    one, other = authority.issue(), authority.issue()
    for certificate, key in ((one.certificate, other.key), (tmp_path / "none", one.key), (one.key, one.key)):
        with pytest.raises(CertificateProblem, match=key.name):
            files(Identity(certificate, key))
    os.system(f"openssl ec -in {one.key} -aes128 -passout pass:secret -out {one.key}.locked 2>/dev/null")
    with pytest.raises(CertificateProblem, match="passphrase"):
        files(Identity(one.certificate, Path(f"{one.key}.locked")))


def test_reload_uses_new_files_and_keeps_the_old_context(tmp_path: Path) -> None:
    """A good pair is used at once; a bad one leaves the context as it was and is counted each time."""
    authority = Authority(tmp_path)
    identity, other, third = (authority.issue() for _ in range(3))
    used = files(identity)
    first = serial(used.context, authority)
    assert used.reload()
    replace(identity, other)
    assert used.reload()
    second = serial(used.context, authority)
    assert second != first
    identity.key.write_bytes(third.key.read_bytes())
    kept = used.context
    assert not used.reload()
    assert used.context is kept
    identity.certificate.unlink()
    assert not used.reload()
    assert serial(used.context, authority) == second
    counters = used._counters
    assert (counters.certificate_reloads.value, counters.certificate_failures.value) == (2, 2)


def test_a_change_is_used_once_it_is_stable(tmp_path: Path) -> None:
    """The files are checked every two seconds; half a pair is noticed but not used, and nothing is read without a
    change."""
    authority = Authority(tmp_path)
    identity, other = authority.issue(), authority.issue()
    used = files(identity)
    before = used.context
    used.refresh(0)
    shutil.copy(other.certificate, identity.certificate)
    used.refresh(LOOK_INTERVAL_MS - 1)
    used.refresh(LOOK_INTERVAL_MS)
    shutil.copy(other.key, identity.key)
    used.refresh(2 * LOOK_INTERVAL_MS)
    assert used.context is before
    used.refresh(3 * LOOK_INTERVAL_MS)
    assert used.context is not before
    taken = used.context
    used.refresh(4 * LOOK_INTERVAL_MS)
    assert used.context is taken
    assert (used._counters.certificate_reloads.value, used._counters.certificate_failures.value) == (1, 0)


def certificate(*names: tuple[str, str], common_name: str = "device-7") -> dict[str, object]:
    return {"subject": ((("organizationName", "x"),), (("commonName", common_name),)), "subjectAltName": names}


def test_names_of_certificates(tmp_path: Path) -> None:
    """URI before e-mail before DNS before the common name; or only the configured kind."""
    full = certificate(("DNS", "d.example"), ("email", "e@example"), ("URI", "spiffe://x/7"), ("URI", "second"))
    expected = {
        "san": "spiffe://x/7",
        "uri": "spiffe://x/7",
        "email": "e@example",
        "dns": "d.example",
        "cn": "device-7",
    }
    assert {kind: certificate_name(full, kind) for kind in expected} == expected
    assert certificate_name(certificate(("DNS", "d.example"), ("email", "e@example")), "san") == "e@example"
    assert certificate_name(certificate(("IP Address", "10.0.0.1")), "san") == "device-7"
    assert certificate_name(certificate(), "dns") is None
    assert certificate_name({}, "san") is None
    used = files(Authority(tmp_path).issue(), client_name="cn")
    assert used.name_of(full) == "device-7"
    assert used.name_of(None) is used.name_of({}) is None


@pytest.mark.parametrize("name", ["admin\0.evil", "", "a\nb", "\x7f"])
def test_a_name_with_control_characters_is_refused(name: str) -> None:
    """Software that stops at a zero byte would read another name, and log lines would break."""
    assert certificate_name(certificate(("DNS", name), common_name=name), "san") is None
