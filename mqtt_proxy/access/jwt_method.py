"""Tokens: a JWT as password, signed by a key of the JWKS file, names the client and what it may do.

A password that does not look like a token is left to the other methods; one that does is decided here alone.

    header   alg must be among those configured and be the algorithm of the key that `kid` names
    claims   exp (required), nbf, iat, aud and iss as configured; user, client id, groups and rules by configured names

Invariant: fails closed: a claim that cannot be understood admits no client, rules included. An unusable JWKS file
prevents the start; later the previous keys stay in force. No token is logged. Loop rule: on the loop's thread (some 100
µs each).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jwt

from mqtt_proxy.access.auth import NAME_BYTES_MAX, ClaimError, is_name, rules_of, texts
from mqtt_proxy.config import AccessConfig
from mqtt_proxy.metrics import AccessCounters
from remoting.access.acl_file import AclError
from remoting.access.rules import Identity, Shown, Unproven
from remoting.protocol.errors import LightMQError
from runtime.files import WatchedFile
from runtime.logs import get_logger

TOKEN_BYTES_MAX = 16_384
"""Longest token read; a longer password is no token."""

KEYS_FILE_BYTES_MAX = 1_048_576
"""Largest JWKS file; a larger one is refused as a mistake."""

Keys = dict[str | None, list[Any]]
"""Key id -> keys of that id."""


class KeysError(LightMQError):
    """The JWKS file gives no keys."""


class JwtMethod:
    """Tokens signed by a known key."""

    name = "jwt"

    def __init__(self, config: AccessConfig, *, counters: AccessCounters) -> None:
        """Reads the keys. KeysError when there are none: do not start then."""
        assert config.jwt_keys_file is not None
        self._config = config
        self._counters = counters
        self._log = get_logger("mqtt_proxy.auth")
        self._file = WatchedFile(config.jwt_keys_file, load_keys, applied=self._read, failed=self._not_read)
        self._keys = self._file.first()

    async def check(self, shown: Shown) -> Identity | Unproven | None:
        """The answer of `at_hand`: keys are in memory."""
        return self.at_hand(shown)

    def at_hand(self, shown: Shown) -> Identity | Unproven | None:
        """The identity in the token."""
        header = header_of(shown.password)
        if header is None:
            return None
        assert shown.password is not None
        try:
            claims = self._verified(shown.password, header)
            return self._identity(claims, shown)
        except (jwt.PyJWTError, ClaimError, AclError) as error:
            # The library's texts name what was wrong with the token, not its contents.
            self._log.warning(
                "mqtt_token_refused", peer=shown.address, problem=type(error).__name__, why=str(error)[:200]
            )
            return Unproven.DENIED

    def files(self) -> Sequence[WatchedFile[Any]]:
        """The file with the verification keys."""
        return (self._file,)

    def refresh(self) -> None:
        """Does nothing: the gate checks the file."""

    async def close(self) -> None:
        """Nothing to release."""

    def _verified(self, token: bytes, header: dict[str, Any]) -> dict[str, Any]:
        config = self._config
        algorithm = header.get("alg")
        if algorithm not in config.jwt_algorithms:
            raise jwt.InvalidAlgorithmError("its algorithm is not among those configured")
        key_id = header.get("kid")
        if key_id is not None and not isinstance(key_id, str):
            raise ClaimError("its key id is no text")
        candidates = self._keys.get(key_id, []) if key_id is not None else [k for ks in self._keys.values() for k in ks]
        fitting = [key for key in candidates if key.algorithm_name == algorithm]
        if len(fitting) != 1:
            raise ClaimError("no key, or more than one, of its id and algorithm")
        claims: dict[str, Any] = jwt.decode(
            token,
            fitting[0].key,
            algorithms=[algorithm],
            audience=config.jwt_audience or None,
            issuer=config.jwt_issuer or None,
            leeway=config.jwt_leeway_s,
            options={"require": ["exp", *(["aud"] if config.jwt_audience else [])]},
        )
        return claims

    def _identity(self, claims: dict[str, Any], shown: Shown) -> Identity:
        config = self._config
        user = _text(claims, config.jwt_user_claim)
        if config.jwt_username == "match" and shown.username and shown.username != user:
            raise ClaimError("its user is not the user name of the CONNECT")
        if config.jwt_client_claim and _text(claims, config.jwt_client_claim) != shown.client_id:
            raise ClaimError("its client id is not that of the CONNECT")
        return Identity(
            user,
            anonymous=False,
            client_id=shown.client_id,
            groups=texts(claims.get(config.jwt_groups_claim, [])),
            rules=rules_of(claims.get(config.jwt_acl_claim), "token"),
            until_ms=int(float(claims["exp"]) + config.jwt_leeway_s) * 1_000,
        )

    def _read(self, keys: Keys) -> None:
        self._keys = keys
        self._counters.reloads.child("jwt_keys", "read").value += 1
        self._log.info("mqtt_jwt_keys_read", keys=sum(map(len, keys.values())))

    def _not_read(self, error: LightMQError) -> None:
        self._counters.reloads.child("jwt_keys", "kept").value += 1
        self._log.error("mqtt_jwt_keys_unusable", problem=str(error), consequence="the keys from before stay in force")


def header_of(password: bytes | None) -> dict[str, Any] | None:
    """The header of a password that looks like a token."""
    if password is None or len(password) > TOKEN_BYTES_MAX or password.count(b".") != 2:
        return None
    try:
        # The first part alone decides: a token with a broken end is refused, not left to other methods.
        part = password.partition(b".")[0]
        header = json.loads(base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4)))
    except ValueError:
        return None
    return header if isinstance(header, dict) and "alg" in header else None


def load_keys(path: Path) -> Keys:
    """The usable keys of a JWKS file. Raises KeysError."""
    try:
        with path.open("rb") as opened:
            data = opened.read(KEYS_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise KeysError(f"key file {path}: {error.strerror}") from error
    if len(data) > KEYS_FILE_BYTES_MAX:
        raise KeysError(f"key file {path} has more than {KEYS_FILE_BYTES_MAX} bytes")
    try:
        found = jwt.PyJWKSet.from_dict(json.loads(data))
    except (jwt.PyJWTError, ValueError, AttributeError, TypeError) as error:
        raise KeysError(f"key file {path} is not a JWKS document with usable keys ({type(error).__name__})") from error
    keys: Keys = {}
    for key in found.keys:
        keys.setdefault(key.key_id, []).append(key)
    return keys


def _text(claims: dict[str, Any], name: str) -> str:
    value = claims.get(name)
    if not is_name(value):
        raise ClaimError(f"its claim {name!r} is no name of 1 to {NAME_BYTES_MAX} bytes")
    assert isinstance(value, str)
    return value
