"""Files of a TLS identity: contexts, their renewal, and what is said of files that are no use."""

from __future__ import annotations

import shutil
import ssl
from pathlib import Path

import pytest

from remoting.transport.certificates import (
    LOOK_INTERVAL_MS,
    CertificateFiles,
    CertificateProblem,
    load_authorities,
    load_pair,
)
from tests.support.certificates import HAVE_OPENSSL, Authority, Identity

pytestmark = pytest.mark.skipif(not HAVE_OPENSSL, reason="makes its certificates with openssl")


class Told(CertificateFiles):
    """Remembers what it was told."""

    def __init__(self, identity: Identity, **options: object) -> None:
        self.events: list[str] = []
        super().__init__(identity.certificate, identity.key, **options)  # type: ignore[arg-type]

    def renewed(self) -> None:
        self.events.append("renewed")

    def unusable(self, problem: CertificateProblem) -> None:
        self.events.append(str(problem))


def test_what_a_context_allows(tmp_path: Path) -> None:
    """TLS 1.2 at least, no renegotiation, client certificates only where there are authorities."""
    authority = Authority(tmp_path)
    identity = authority.issue()
    context = Told(identity).context
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.options & ssl.OP_NO_RENEGOTIATION
    assert context.options & ssl.OP_NO_COMPRESSION
    assert context.verify_mode is ssl.CERT_NONE
    wished = Told(identity, client_ca=authority.certificate)
    wanted = Told(identity, client_ca=authority.certificate, client_required=True)
    assert (wished.context.verify_mode, wanted.context.verify_mode) == (ssl.CERT_OPTIONAL, ssl.CERT_REQUIRED)


def test_files_that_are_no_use_are_named_and_not_quoted(tmp_path: Path) -> None:
    """Missing, of another pair, no certificate at all: the text has the file's name."""
    authority = Authority(tmp_path)
    one, other = authority.issue(), authority.issue()
    with pytest.raises(CertificateProblem, match=other.key.name):
        Told(Identity(one.certificate, other.key))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with pytest.raises(CertificateProblem, match=r"none\.pem: No such file"):
        load_authorities(context, tmp_path / "none.pem", "authorities")
    with pytest.raises(CertificateProblem, match="authorities"):
        load_authorities(context, one.key, "authorities")
    load_pair(context, one.certificate, one.key)


def test_a_change_is_taken_once_it_rests_and_a_bad_one_never(tmp_path: Path) -> None:
    """Half a pair is not taken; files that do not fit leave the context in use and are told of."""
    authority = Authority(tmp_path)
    identity, other, third = (authority.issue() for _ in range(3))
    used = Told(identity)
    before = used.context
    used.refresh(0)
    shutil.copy(other.certificate, identity.certificate)
    used.refresh(LOOK_INTERVAL_MS - 1)
    used.refresh(LOOK_INTERVAL_MS)
    shutil.copy(other.key, identity.key)
    used.refresh(2 * LOOK_INTERVAL_MS)
    assert used.context is before
    used.refresh(3 * LOOK_INTERVAL_MS)
    taken = used.context
    assert taken is not before
    shutil.copy(third.key, identity.key)
    assert not used.reload()
    assert used.context is taken
    assert used.events[0] == "renewed"
    assert identity.key.name in used.events[1]
