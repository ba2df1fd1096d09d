"""The secrets of an installation in Kubernetes, made in the cluster by the job that the Helm chart runs.

    python -m lightmq.kubernetes_secrets PLAN       PLAN: a file of JSON in the form of `SecretsPlan`

    keys        a key for each part (`credentials`), `all` for those who check them, `raft` for the controllers
    authority   ca.crt, ca.key: nobody but the job reads it
    tls         ca.crt, tls.crt, tls.key: a certificate by that authority for every name of the plan

A chart cannot make them: who renders it without the cluster, as GitOps tools do, would get others each time.
Invariants: what is there stays, and only what is missing is made, so that a second run writes nothing; the certificate
alone is renewed, by the same authority, when it lacks a name or two thirds of its time are over. A write names the
version that was read, so that of two jobs at once one fails, and is repeated by Kubernetes. Nothing secret is printed.
No loop: one thread, which waits for each answer.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import ssl
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any

import msgspec
from cryptography import x509

from lightmq import certificates, credentials
from lightmq.certificates import AUTHORITY, AUTHORITY_KEY, CERTIFICATE, KEY
from remoting.protocol.errors import LightMQError, LocalMisuse
from runtime.clock import SystemClock
from runtime.files import atomic_replace

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds the token of its account, and the authority of the cluster."""
TIMEOUT_S = 20
RAFT = "raft"
RAFT_BYTES = 24


class KeysPlan(msgspec.Struct, forbid_unknown_fields=True):
    """The secret of the access keys, and who has one."""

    secret: str
    users: list[str]


class TlsPlan(msgspec.Struct, forbid_unknown_fields=True):
    """The secrets of the certificate and of its authority, the names in it, and how many days it is valid."""

    secret: str
    authority: str
    names: list[str]
    days: int


class SecretsPlan(msgspec.Struct, forbid_unknown_fields=True):
    """What there is to be; None: the user has a secret of that kind."""

    namespace: str
    labels: dict[str, str]
    keys: KeysPlan | None = None
    tls: TlsPlan | None = None


class ApiFailed(LightMQError):
    """Kubernetes did not do what was asked; the text has its reason."""


class KubernetesSecrets:
    """The secrets of one namespace, read and written by the account of this pod."""

    def __init__(self, plan: SecretsPlan, host: str, port: int, account: Path) -> None:
        """`host`, `port`: of the API. Raises OSError when the account's files are not there."""
        self._path = f"/api/v1/namespaces/{plan.namespace}/secrets"
        self._labels = plan.labels
        token = (account / "token").read_text().strip()
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        tls = ssl.create_default_context(cafile=str(account / "ca.crt"))
        self._connection = HTTPSConnection(host, port, timeout=TIMEOUT_S, context=tls)

    def read(self, name: str) -> dict[str, Any] | None:
        """A secret as Kubernetes has it, None if there is none. Raises ApiFailed, OSError."""
        status, answer = self._ask("GET", f"/{name}")
        if status == HTTPStatus.NOT_FOUND:
            return None
        if status != HTTPStatus.OK:
            raise _failed("show", name, status, answer)
        return answer

    def write(self, name: str, known: dict[str, Any] | None, data: Mapping[str, bytes], kind: str = "Opaque") -> None:
        """Make a secret, or replace the named items of the `known` one. Raises ApiFailed, OSError."""
        encoded = {item: base64.b64encode(value).decode() for item, value in data.items()}
        if known is None:
            metadata = {"name": name, "labels": self._labels}
            secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": kind, "data": encoded}
            status, answer = self._ask("POST", "", secret)
        else:
            secret = {**known, "data": {**(known.get("data") or {}), **encoded}}
            status, answer = self._ask("PUT", f"/{name}", secret)
        if status not in (HTTPStatus.OK, HTTPStatus.CREATED):
            raise _failed("take", name, status, answer)

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        content = None if body is None else json.dumps(body).encode()
        with contextlib.closing(self._connection):  # the next request dials again
            self._connection.request(method, self._path + path, content, self._headers)
            answer = self._connection.getresponse()
            found: dict[str, Any] = json.load(answer)
        return answer.status, found


def _failed(verb: str, name: str, status: int, answer: Mapping[str, Any]) -> ApiFailed:
    return ApiFailed(f"Kubernetes did not {verb} the secret {name}: {status} {answer.get('message', '')}")


def items_of(secret: Mapping[str, Any] | None) -> dict[str, bytes]:
    """The items of a secret; of one that is not there, none."""
    return {name: base64.b64decode(value) for name, value in ((secret or {}).get("data") or {}).items()}


def make_keys(store: KubernetesSecrets, plan: KeysPlan, folder: Path) -> bool:
    """Make the keys that are missing; whether any was. Raises ApiFailed, LocalMisuse, OSError."""
    known = store.read(plan.secret)
    there = items_of(known)
    for user in plan.users:
        if user in there:
            atomic_replace(folder / user, there[user], mode=credentials.MODE)
    credentials.make(folder, plan.users)
    wanted = {name: (folder / name).read_bytes() for name in (*plan.users, credentials.ALL)}
    wanted[RAFT] = there.get(RAFT) or secrets.token_hex(RAFT_BYTES).encode()
    missing = {name: value for name, value in wanted.items() if there.get(name) != value}
    if missing:
        store.write(plan.secret, known, missing)
    return bool(missing)


def make_certificate(store: KubernetesSecrets, plan: TlsPlan, folder: Path, now: datetime) -> bool:
    """Make the certificate, and the authority before it, or renew it; whether that was necessary.

    Raises ApiFailed, OSError, and LocalMisuse where a certificate has to be renewed whose authority is not there.
    """
    known, authority = store.read(plan.secret), store.read(plan.authority)
    there = items_of(known)
    reason = why_renew(there[CERTIFICATE], plan.names, now) if CERTIFICATE in there else "there is none"
    if not reason:
        return False
    if there and authority is None:
        raise LocalMisuse(
            f"the certificate in the secret {plan.secret} must be renewed ({reason}), and the key of its authority is "
            f"not in the secret {plan.authority}, where charts of today keep it. Delete {plan.secret}: a new authority "
            "and certificate are made then, which clients have to be given and the parts take when they are restarted"
        )
    for name, value in items_of(authority).items():
        if name in (AUTHORITY, AUTHORITY_KEY):
            atomic_replace(folder / name, value, mode=certificates.SECRET_MODE)
    certificates.make(folder, plan.names, days=plan.days, now=now)
    made = {name: (folder / name).read_bytes() for name in (AUTHORITY, AUTHORITY_KEY, CERTIFICATE, KEY)}
    if authority is None:
        store.write(plan.authority, None, {name: made[name] for name in (AUTHORITY, AUTHORITY_KEY)})
    served = {name: made[name] for name in (AUTHORITY, CERTIFICATE, KEY)}
    store.write(plan.secret, known, served, "kubernetes.io/tls")
    return True


def why_renew(pem: bytes, names: Sequence[str], now: datetime) -> str:
    """Why a certificate does not do any more; empty for one that does. Raises LocalMisuse when it cannot be read."""
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound) as error:
        raise LocalMisuse(f"the certificate cannot be read: {error}") from error
    known = {*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress))}
    missing = [name for name in names if name not in known]
    if missing:
        return f"it lacks {', '.join(missing)}"
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return f"it ends on {end:%Y-%m-%d}" if now > end - (end - begin) / 3 else ""


def make_all(plan: SecretsPlan, store: KubernetesSecrets, now: datetime) -> list[str]:
    """Make what the plan names and is not there; the secrets that were written."""
    written = []
    with tempfile.TemporaryDirectory() as folder:
        keys, tls = Path(folder) / "keys", Path(folder) / "tls"
        keys.mkdir(mode=0o700)
        tls.mkdir(mode=0o700)
        if plan.keys is not None and make_keys(store, plan.keys, keys):
            written.append(plan.keys.secret)
        if plan.tls is not None and make_certificate(store, plan.tls, tls, now):
            written.append(plan.tls.secret)
    return written


def main(arguments: Sequence[str], environ: Mapping[str, str], account: Path = ACCOUNT) -> int:
    """Run the plan of the file that is named; the exit status."""
    now = datetime.fromtimestamp(SystemClock().now_ms() / 1_000, UTC)
    try:
        (path,) = arguments
        plan = msgspec.json.decode(Path(path).read_bytes(), type=SecretsPlan)
        host, port = environ["KUBERNETES_SERVICE_HOST"], int(environ["KUBERNETES_SERVICE_PORT"])
        written = make_all(plan, KubernetesSecrets(plan, host, port, account), now)
    except (LightMQError, OSError, HTTPException, ValueError, KeyError, msgspec.MsgspecError) as error:
        sys.stderr.write(f"the secrets could not be made: {type(error).__name__}: {error}\n")
        return 1
    sys.stderr.write(f"written: {', '.join(written) or 'nothing, all is there'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
