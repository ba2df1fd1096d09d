"""Checking a password against its argon2id hash without stopping the loop, and remembering what was right.

Invariants: hashing runs in a small executor behind a bounded queue, never on the loop; only successes are remembered,
under a keyed hash of user, password and stored hash, so the cache holds no password and a changed password misses by
itself. An unknown user costs the same work as a wrong password. Loop rule: called on one loop; the executor's threads
only hash.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

import argon2

from runtime.clock import Clock

VERIFIED_MAX = 10_000
"""Remembered successes; the oldest is forgotten first."""

VERIFIED_FOR_MS = 300_000
"""How long a success is remembered; then the hash is computed again."""

WAITING_MAX = 256
"""Verifications that may wait; more are turned away as busy (a client tries again), so that a flood costs no memory."""

THREADS = 2
"""Threads that hash; each costs the hash's memory (64 MiB by default) while it works."""


def make_hash(password: str | bytes) -> str:
    """The argon2id hash of a password, for a line of the password file."""
    return argon2.PasswordHasher().hash(password)


def verify(stored: str, password: bytes) -> bool:
    """Whether the password belongs to the hash; takes tens of milliseconds."""
    try:
        return argon2.PasswordHasher().verify(stored, password)
    except (argon2.exceptions.VerificationError, argon2.exceptions.InvalidHashError):
        return False


class CredentialCheck:
    """Verifies credentials off the loop, with a cache of successes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._verified: OrderedDict[bytes, int] = OrderedDict()
        self._executor: ThreadPoolExecutor | None = None
        self._waiting = 0
        self._decoy: str | None = None

    async def check(self, username: str, password: bytes, stored: str | None) -> str:
        """ "accepted", "denied" or "busy"; `stored` is None for a user that does not exist."""
        fingerprint = self._fingerprint(username, password, stored or "")
        now_ms = self._clock.monotonic_ns() // 1_000_000
        expires_ms = self._verified.get(fingerprint)
        if expires_ms is not None and expires_ms > now_ms and stored is not None:
            return "accepted"
        if self._waiting >= WAITING_MAX:
            return "busy"
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            right = await loop.run_in_executor(self._threads(), self._verify, stored, password)
        finally:
            self._waiting -= 1
        if not right:
            return "denied"
        self._remember(fingerprint, now_ms + VERIFIED_FOR_MS)
        return "accepted"

    def close(self) -> None:
        """Stop the threads; what waits is dropped."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None

    def _verify(self, stored: str | None, password: bytes) -> bool:
        if stored is None:
            if self._decoy is None:
                self._decoy = make_hash(secrets.token_hex(16))
            verify(self._decoy, password)
            return False
        return verify(stored, password)

    def _remember(self, fingerprint: bytes, expires_ms: int) -> None:
        self._verified[fingerprint] = expires_ms
        self._verified.move_to_end(fingerprint)
        while len(self._verified) > VERIFIED_MAX:
            self._verified.popitem(last=False)

    def _fingerprint(self, username: str, password: bytes, stored: str) -> bytes:
        digest = hashlib.blake2b(key=self._key, digest_size=32)
        for part in (username.encode(), password, stored.encode()):
            digest.update(len(part).to_bytes(4, "big"))
            digest.update(part)
        return digest.digest()

    def _threads(self) -> ThreadPoolExecutor:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="credentials")
        return self._executor
