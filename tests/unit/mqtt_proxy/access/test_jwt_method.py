"""JSON Web Tokens: which are accepted, and every way in which one is refused."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
import structlog
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from mqtt_proxy.access.jwt_method import TOKEN_BYTES_MAX, JwtMethod, KeysError, header_of, load_keys
from mqtt_proxy.config import AccessConfig
from mqtt_proxy.metrics import AccessCounters
from remoting.access.rules import Identity, Shown, Unproven
from runtime.metrics import Registry

EC = ec.generate_private_key(ec.SECP256R1())
RSA = rsa.generate_private_key(65_537, 2_048)
OTHER = ec.generate_private_key(ec.SECP256R1())
SECRET = b"a secret of thirty-two bytes, no"


def jwk(key: Any, key_id: str) -> dict[str, Any]:
    algorithm = RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else ECAlgorithm
    return {**json.loads(algorithm.to_jwk(key.public_key())), "kid": key_id}


KEYS = {"keys": [jwk(EC, "ec"), jwk(RSA, "rsa")]}


def make(tmp_path: Path, keys: object = KEYS, **settings: object) -> JwtMethod:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps(keys))
    config = AccessConfig(jwt_keys_file=path, **settings)  # type: ignore[arg-type]
    return JwtMethod(config, counters=AccessCounters(Registry()))


def token(key: Any = EC, alg: str = "ES256", kid: str | None = "ec", **claims: object) -> bytes:
    headers = {} if kid is None else {"kid": kid}
    content = {"sub": "ann", "exp": int(time.time()) + 600, **claims}
    return jwt.encode({k: v for k, v in content.items() if v is not None}, key, alg, headers=headers).encode()


def shown(password: bytes | None, username: str | None = "ann", client_id: str = "c") -> Shown:
    return Shown(client_id=client_id, username=username, password=password, address="10.0.0.9")


async def test_the_identity_a_token_gives(tmp_path: Path) -> None:
    """User, groups, rules and expiry; a user name may be left out."""
    method = make(tmp_path)
    given = token(groups=["line-3"], acl=["readwrite d/%c/#", "deny d/x"])
    for name in ("ann", None, ""):
        identity = await method.check(shown(given, name))
        assert isinstance(identity, Identity)
        assert (identity.name, identity.anonymous, identity.client_id, identity.groups) == (
            "ann",
            False,
            "c",
            ("line-3",),
        )
        assert [rule.text for rule in identity.rules] == ["readwrite d/%c/#", "deny d/x"]
        assert identity.until_ms is not None
        assert 600_000 < identity.until_ms - time.time() * 1_000 < 640_000
    assert isinstance(await method.check(shown(token(RSA, "RS256", "rsa"))), Identity)
    method.refresh()
    await method.close()


async def test_other_passwords_are_left_to_other_methods(tmp_path: Path) -> None:
    """Only what looks like a token is examined."""
    method = make(tmp_path)
    for password in (None, b"", b"secret", b"a.b.c", b"..", b"x" * TOKEN_BYTES_MAX + b"..", b"\xff.\xff.\xff"):
        assert await method.check(shown(password)) is None, password
    assert header_of(token()) == {"alg": "ES256", "kid": "ec", "typ": "JWT"}


def unsigned(header: dict[str, object]) -> bytes:
    parts = (header, {"sub": "ann", "exp": int(time.time()) + 600})
    coded = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in parts]
    return b".".join((*coded, b""))


def signed_with_the_public_key() -> bytes:
    """A token signed as if the server used its public key as a shared secret."""
    content = unsigned({"alg": "HS256", "kid": "rsa"})[:-1]
    code = hmac.new(PUBLIC, content, hashlib.sha256).digest()
    return content + b"." + base64.urlsafe_b64encode(code).rstrip(b"=")


PUBLIC = json.dumps(jwk(RSA, "rsa")).encode()
REFUSED = {
    "of an unknown key": lambda: token(OTHER),
    "of an unknown key id": lambda: token(kid="no"),
    "expired": lambda: token(exp=int(time.time()) - 60),
    "not yet valid": lambda: token(nbf=int(time.time()) + 120),
    "from the future": lambda: token(iat=int(time.time()) + 120),
    "without expiry": lambda: token(exp=None),
    "for somebody else": lambda: token(aud="other"),
    "without a user": lambda: token(sub=None),
    "with an empty user": lambda: token(sub=""),
    "with a user that is no text": lambda: token(sub=["ann"]),
    "for another user name": lambda: token(sub="bob"),
    "with groups that are none": lambda: token(groups="all"),
    "with rules that are none": lambda: token(acl=[]),
    "with a garbled rule": lambda: token(acl=["alow #"]),
    "unsigned": lambda: unsigned({"alg": "none", "typ": "JWT"}),
    "signed with the public key as secret": lambda: signed_with_the_public_key(),
    "of an algorithm that is not configured": lambda: token(RSA, "PS256", "rsa"),
    "of another algorithm than its key": lambda: token(RSA, "RS256", "ec"),
    "with a key id that is no text": lambda: unsigned({"alg": "ES256", "kid": 5}),
    "with an algorithm that is no text": lambda: unsigned({"alg": ["ES256"]}),
    "with an end that is no base64": lambda: token()[:-1] + b"!",
    "changed": lambda: token()[:-4] + b"AAAA",
}


@pytest.mark.parametrize("what", REFUSED)
async def test_tokens_that_are_refused(tmp_path: Path, what: str) -> None:
    """The refusal is final: no other method is asked, and nothing of the token is logged."""
    given = REFUSED[what]()
    with structlog.testing.capture_logs() as said:
        assert await make(tmp_path).check(shown(given)) is Unproven.DENIED
    assert given.decode() not in repr(said)
    assert given.rsplit(b".", 1)[0].decode() not in repr(said)


async def test_claims_that_are_configured(tmp_path: Path) -> None:
    """Audience, issuer, client id, and user names that do not count."""
    method = make(tmp_path, jwt_audience="mqtt", jwt_issuer="us", jwt_client_claim="dev", jwt_username="any")
    good = {"aud": ["mqtt"], "iss": "us", "dev": "c"}
    assert isinstance(await method.check(shown(token(**good), "whatever")), Identity)
    for wrong in ({"aud": "x"}, {"aud": None}, {"iss": "x"}, {"iss": None}, {"dev": "d"}, {"dev": None}):
        assert await method.check(shown(token(**(good | wrong)))) is Unproven.DENIED, wrong


async def test_keys_without_an_id(tmp_path: Path) -> None:
    """One key of the algorithm is unambiguous, two are not."""
    anonymous = {key: value for key, value in jwk(EC, "").items() if key != "kid"}
    assert isinstance(await make(tmp_path, {"keys": [anonymous]}).check(shown(token(kid=None))), Identity)
    two = make(tmp_path, {"keys": [jwk(EC, "a"), jwk(OTHER, "b")]})
    assert await two.check(shown(token(kid=None))) is Unproven.DENIED
    secret = {"kty": "oct", "alg": "HS256", "k": base64.urlsafe_b64encode(SECRET).rstrip(b"=").decode(), "kid": "s"}
    shared = make(tmp_path, {"keys": [secret]}, jwt_algorithms=("HS256",))
    assert isinstance(await shared.check(shown(token(SECRET, "HS256", "s"))), Identity)


async def test_new_keys_are_read_and_bad_ones_change_nothing(tmp_path: Path) -> None:
    """The gate polls the file."""
    method = make(tmp_path)
    (file,) = method.files()
    (tmp_path / "keys.json").write_text("{")
    await file.refresh(now=True)
    assert isinstance(await method.check(shown(token())), Identity)
    (tmp_path / "keys.json").write_text(json.dumps({"keys": [jwk(OTHER, "ec")]}))
    await file.refresh(now=True)
    assert await method.check(shown(token())) is Unproven.DENIED
    assert isinstance(await method.check(shown(token(OTHER))), Identity)
    assert method._counters.reloads.child("jwt_keys", "kept").value == 1
    assert method._counters.reloads.child("jwt_keys", "read").value == 1


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"keys": []}', b'{"keys": [{"kty": "?"}]}', b"x" * 1_048_577])
def test_files_without_keys(tmp_path: Path, content: bytes) -> None:
    """A missing one included."""
    path = tmp_path / "keys"
    with pytest.raises(KeysError):
        load_keys(path)
    path.write_bytes(content)
    with pytest.raises(KeysError):
        load_keys(path)
