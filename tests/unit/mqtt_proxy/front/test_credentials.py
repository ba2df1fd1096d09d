"""Checking passwords: right, wrong, unknown, remembered, too many at once."""

from __future__ import annotations

import asyncio

import argon2
import pytest

from mqtt_proxy.front import credentials
from mqtt_proxy.front.credentials import CredentialCheck, make_hash, verify
from runtime.clock import ManualClock

STORED = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash("right")


def test_make_hash_fits_verify() -> None:
    """The command line writes what the proxy reads."""
    stored = make_hash("secret")
    assert stored.startswith("$argon2id$")
    assert verify(stored, b"secret")
    assert not verify(stored, b"other")
    assert not verify("not a hash", b"secret")


async def test_right_wrong_and_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the right password of a known user gets in; an unknown user costs a hash too."""
    check = CredentialCheck(ManualClock())
    assert await check.check("ann", b"right", STORED) == "accepted"
    assert await check.check("ann", b"wrong", STORED) == "denied"
    calls: list[str] = []
    monkeypatch.setattr(credentials, "verify", lambda stored, _: calls.append(stored) or False)
    assert await check.check("eve", b"right", None) == "denied"
    assert len(calls) == 1
    check.close()


async def test_a_success_is_remembered_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second CONNECT hashes nothing; a new stored hash, another password or time make it hash again."""
    clock = ManualClock()
    check = CredentialCheck(clock)
    assert await check.check("ann", b"right", STORED) == "accepted"
    calls: list[str] = []
    monkeypatch.setattr(credentials, "verify", lambda stored, _: calls.append(stored) or False)
    assert await check.check("ann", b"right", STORED) == "accepted"
    assert calls == []
    assert await check.check("ann", b"right", STORED + "x") == "denied"
    assert await check.check("ann", b"right", None) == "denied"
    clock.advance_ms(credentials.VERIFIED_FOR_MS)
    assert await check.check("ann", b"right", STORED) == "denied"
    assert len(calls) == 3
    check.close()


async def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest success makes room."""
    monkeypatch.setattr(credentials, "VERIFIED_MAX", 2)
    monkeypatch.setattr(credentials, "verify", lambda *_: True)
    check = CredentialCheck(ManualClock())
    for name in ("a", "b", "c"):
        assert await check.check(name, b"p", STORED) == "accepted"
    assert len(check._verified) == 2
    check.close()


async def test_a_flood_is_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the queue a CONNECT is told to come back, whatever its password."""
    monkeypatch.setattr(credentials, "WAITING_MAX", 3)
    check = CredentialCheck(ManualClock())
    results = await asyncio.gather(*(check.check(f"u{n}", b"right", STORED) for n in range(5)))
    assert results == ["accepted"] * 3 + ["busy"] * 2
    assert await check.check("u9", b"right", STORED) == "accepted"
    check.close()
