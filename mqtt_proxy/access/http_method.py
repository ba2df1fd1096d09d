"""A hook: the operator's own service decides by POST who a client is.

    asked     {"client_id", "username", "password" or "password_base64", "address", "certificate"}
    answered  200 {"result": "allow", "user", "groups", "acl"}    let in as user (else the name of the CONNECT)
              200 {"result": "deny"}                              kept out
              200 {"result": "ignore"}                            the next method decides
              anything else, too late, too long                   refused with a code to try again

An accepted client is cached for a while, under a keyed hash of its credentials; a denial for a second, so that a client
that retries does not load the hook.

Invariants: fails closed; at most `http_concurrent_max` requests in flight and `http_waiting_max` waiting; no redirect
is followed; no password is logged. Loop rule: on one loop.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import secrets
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp

from mqtt_proxy.access.auth import ClaimError, Waits, rules_of, texts
from mqtt_proxy.access.credentials import LargeConnects
from mqtt_proxy.config import AccessConfig
from remoting.access.acl_file import AclError
from remoting.access.rules import Identity, Shown, Unproven
from remoting.protocol.errors import LightMQError
from runtime.clock import Clock
from runtime.files import WatchedFile
from runtime.logs import get_logger

ANSWER_BYTES_MAX = 65_536
"""Longest answer read; a longer one is none."""

REMEMBERED_MAX = 10_000
"""Cached answers; the oldest is dropped first."""

DENIED_FOR_MS = 1_000
"""How long a denial is cached."""

SECRET_BYTES_MAX = 4_096


class HookError(LightMQError):
    """The hook gave no answer that can be used."""


class HttpMethod:
    """Authentication and authorization by an HTTP service of the operator's."""

    name = "http"

    def __init__(self, config: AccessConfig, *, clock: Clock) -> None:
        """Reads the secret. HookError when there is one that cannot be used."""
        self._config = config
        self._clock = clock
        self._log = get_logger("mqtt_proxy.auth")
        self._headers = _headers(config.http_secret_file)
        self._key = secrets.token_bytes(32)
        self._remembered: OrderedDict[bytes, tuple[int, Identity | Unproven]] = OrderedDict()
        self._turn = asyncio.Semaphore(config.http_concurrent_max)
        self._waiting = 0
        self._large = LargeConnects()
        self._client: aiohttp.ClientSession | None = None

    def at_hand(self, shown: Shown) -> Identity | Unproven | Waits | None:
        """The hook's cached answer."""
        if shown.username is None and shown.password is None:
            return None
        known = self._remembered.get(self._fingerprint(shown))
        return known[1] if known is not None and known[0] > self._now_ms() else Waits.LATER

    async def check(self, shown: Shown) -> Identity | Unproven | None:
        """The hook's answer."""
        known = self.at_hand(shown)
        if not isinstance(known, Waits):
            return known
        fingerprint = self._fingerprint(shown)
        if self._waiting >= self._config.http_waiting_max + self._config.http_concurrent_max:
            return Unproven.BUSY
        if not self._large.admit(shown.size_bytes):
            return Unproven.BUSY
        self._waiting += 1
        try:
            async with self._turn:
                if not shown.wanted():
                    return Unproven.LEFT
                answer = await self._ask(shown)
        finally:
            self._waiting -= 1
            self._large.release(shown.size_bytes)
        self._remember(fingerprint, answer)
        return answer

    def files(self) -> Sequence[WatchedFile[Any]]:
        """None that change while it runs."""
        return ()

    def refresh(self) -> None:
        """Drop the cached answers, so that the hook decides about every client again."""
        self._remembered.clear()

    async def close(self) -> None:
        """Close the HTTP client and its connections."""
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def _ask(self, shown: Shown) -> Identity | Unproven | None:
        try:
            return identity_of(await self._post(question_about(shown)), shown)
        except (HookError, ClaimError, AclError, aiohttp.ClientError, TimeoutError, ValueError) as error:
            self._log.error("mqtt_hook_failed", peer=shown.address, problem=type(error).__name__, why=str(error)[:200])
            return Unproven.UNAVAILABLE

    async def _post(self, question: dict[str, Any]) -> Any:
        if self._client is None:
            timeout = aiohttp.ClientTimeout(total=self._config.http_timeout_ms / 1_000)
            self._client = aiohttp.ClientSession(timeout=timeout, headers=self._headers, trust_env=False)
        async with self._client.post(self._config.http_url, json=question, allow_redirects=False) as response:
            if response.status != 200:
                raise HookError(f"status {response.status}")
            body = b""
            async for piece in response.content.iter_chunked(16_384):
                body += piece
                if len(body) > ANSWER_BYTES_MAX:
                    raise HookError(f"an answer of more than {ANSWER_BYTES_MAX} bytes")
        return json.loads(body)

    def _remember(self, fingerprint: bytes, answer: Identity | Unproven | None) -> None:
        if isinstance(answer, Identity):
            for_ms = self._config.http_cache_ms
        elif answer is Unproven.DENIED:
            for_ms = DENIED_FOR_MS
        else:
            return
        self._remembered[fingerprint] = (self._now_ms() + for_ms, answer)
        self._remembered.move_to_end(fingerprint)
        while len(self._remembered) > REMEMBERED_MAX:
            self._remembered.popitem(last=False)

    def _fingerprint(self, shown: Shown) -> bytes:
        digest = hashlib.blake2b(key=self._key, digest_size=32)
        parts = (shown.client_id, shown.username, shown.password, shown.address, shown.certificate)
        for part in parts:
            raw = part.encode() if isinstance(part, str) else part
            # Absent and empty are different.
            digest.update(b"-" if raw is None else len(raw).to_bytes(4, "big") + raw)
        return digest.digest()

    def _now_ms(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000


def question_about(shown: Shown) -> dict[str, Any]:
    """The body of a request to the hook."""
    question: dict[str, Any] = {
        "client_id": shown.client_id,
        "username": shown.username,
        "address": shown.address,
        "certificate": shown.certificate,
    }
    if shown.password is not None:
        try:
            question["password"] = shown.password.decode()
        except UnicodeDecodeError:
            question["password_base64"] = base64.b64encode(shown.password).decode()
    return question


def identity_of(answer: Any, shown: Shown) -> Identity | Unproven | None:
    """The identity in an answer. Raises HookError, BroughtError or AclError when it has none."""
    result = answer.get("result") if isinstance(answer, dict) else None
    if result == "deny":
        return Unproven.DENIED
    if result == "ignore":
        return None
    if result != "allow":
        raise HookError("an answer without a result")
    (user,) = texts([answer.get("user", shown.username)], 1, "user")
    return Identity(
        user,
        anonymous=False,
        client_id=shown.client_id,
        groups=texts(answer.get("groups", []), what="groups"),
        rules=rules_of(answer.get("acl"), "hook"),
    )


def _headers(secret_file: Path | None) -> dict[str, str]:
    if secret_file is None:
        return {}
    try:
        secret = secret_file.read_bytes()[:SECRET_BYTES_MAX].decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise HookError(f"secret file {secret_file}: {getattr(error, 'strerror', None) or 'not UTF-8'}") from error
    if not secret or not secret.isprintable():
        raise HookError(f"secret file {secret_file} holds no secret of one line")
    return {"Authorization": f"Bearer {secret}"}
