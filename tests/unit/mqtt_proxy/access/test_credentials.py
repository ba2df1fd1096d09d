"""Checking passwords: right, wrong, unknown, cached, and too many at a time."""

from __future__ import annotations

import asyncio
import threading

import argon2
import pytest

from mqtt_proxy.access import credentials
from mqtt_proxy.access.credentials import CredentialCheck, make_hash, verify
from mqtt_proxy.access.scram import derive
from tests.support.clock import ManualClock

STORED = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash("right")


def test_make_hash_matches_verify() -> None:
    """The proxy reads what the command line writes."""
    stored = make_hash("secret")
    assert stored.startswith("$argon2id$")
    assert verify(stored, b"secret")
    assert not verify(stored, b"other")
    assert not verify("not a hash", b"secret")


async def test_right_wrong_and_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the right password of a known user is accepted; an unknown user costs a hash too."""
    check = CredentialCheck(ManualClock())
    assert await check.check("ann", b"right", STORED) == "accepted"
    assert await check.check("ann", b"wrong", STORED) == "denied"
    calls: list[str] = []
    monkeypatch.setattr(credentials, "verify", lambda stored, _: calls.append(stored) or False)
    assert await check.check("eve", b"right", None) == "denied"
    assert len(calls) == 1
    check.close()


async def test_a_success_is_remembered_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second CONNECT costs no hash; a new stored hash, another password or the end of the lifetime costs one
    again."""
    clock = ManualClock()
    check = CredentialCheck(clock, remembered_s=60)
    assert await check.check("ann", b"right", STORED) == "accepted"
    calls: list[str] = []
    monkeypatch.setattr(credentials, "verify", lambda stored, _: calls.append(stored) or False)
    assert await check.check("ann", b"right", STORED) == "accepted"
    assert calls == []
    assert await check.check("ann", b"right", STORED + "x") == "denied"
    assert await check.check("ann", b"right", None) == "denied"
    for _ in range(3):  # each use begins it anew
        clock.advance_ms(59_999)
        assert await check.check("ann", b"right", STORED) == "accepted"
    clock.advance_ms(60_000)
    assert await check.check("ann", b"right", STORED) == "denied"
    assert len(calls) == 3
    check.close()


async def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest success is dropped."""
    monkeypatch.setattr(credentials, "verify", lambda *_: True)
    check = CredentialCheck(ManualClock(), remembered_max=2)
    for name in ("a", "b", "c"):
        assert await check.check(name, b"p", STORED) == "accepted"
    assert len(check._verified) == 2
    check.close()


async def test_a_flood_is_turned_away() -> None:
    """When the queue is full a CONNECT is refused with "try again", whatever its password."""
    check = CredentialCheck(ManualClock(), waiting_max=3)
    results = await asyncio.gather(*(check.check(f"u{n}", b"right", STORED) for n in range(7)))
    assert results == ["accepted"] * 5 + ["busy"] * 2
    assert await check.check("u9", b"right", STORED) == "accepted"
    check.close()


class Gate:
    """A hash that takes as long as the test wants."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = threading.Event()
        self.passwords: list[bytes] = []
        monkeypatch.setattr(credentials, "verify", self._verify)
        monkeypatch.setattr(credentials, "THREADS", 1)

    def _verify(self, _stored: str, password: bytes) -> bool:
        self.passwords.append(password)
        assert self.opened.wait(10)
        return password == b"right"


async def test_a_client_that_has_left_costs_no_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it says so, its end is detected, or its entry is dropped for others."""
    gate, check = Gate(monkeypatch), CredentialCheck(ManualClock(), waiting_max=2)
    first = asyncio.create_task(check.check("a", b"first", STORED))
    cancelled = asyncio.create_task(check.check("b", b"cancelled", STORED))
    left = asyncio.create_task(check.check("c", b"left", STORED, wanted=lambda: False))
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.sleep(0)
    last = asyncio.create_task(check.check("d", b"right", STORED))
    assert await left == "left"
    gate.opened.set()
    assert (await first, await last) == ("denied", "accepted")
    assert gate.passwords == [b"first", b"right"]
    assert check.hashes == 2
    check.close()


async def test_the_right_password_does_not_wait_behind_a_flood(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither from another address nor as another user from the same one; invented users count as one user."""
    gate, check = Gate(monkeypatch), CredentialCheck(ManualClock(), waiting_max=64)
    flood = [
        asyncio.create_task(check.check(f"made up {n}", b"%d" % n, None, address="10.0.0.1")) for n in range(64 + 4)
    ]
    await asyncio.sleep(0)
    right = [
        asyncio.create_task(check.check("ann", b"right", STORED, address=address))
        for address in ("10.0.0.1", "10.0.0.2")
    ]
    await asyncio.sleep(0)
    gate.opened.set()
    assert [await each for each in right] == ["accepted", "accepted"]
    assert len(gate.passwords) < 8
    results = await asyncio.gather(*flood)
    assert results.count("busy") == 5
    check.close()


async def test_a_fleet_that_shares_a_user_costs_one_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that waited are let in by the first one's success; it also counts when that client has left."""
    gate, check = Gate(monkeypatch), CredentialCheck(ManualClock())
    first = asyncio.create_task(check.check("ann", b"right", STORED))
    others = [asyncio.create_task(check.check("ann", b"right", STORED, address=f"10.0.0.{n}")) for n in range(50)]
    await asyncio.sleep(0)
    first.cancel()
    gate.opened.set()
    assert set(await asyncio.gather(*others)) == {"accepted"}
    assert check.hashes == 1
    check.close()


async def test_large_connects_wait_within_a_bound_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that many waiting clients cost little memory; small ones are not affected, and room comes back."""
    monkeypatch.setattr(credentials, "LARGE_BYTES_MAX", 5_000)
    gate, check = Gate(monkeypatch), CredentialCheck(ManualClock())
    large = asyncio.create_task(check.check("ann", b"right", STORED, size_bytes=3_000))
    await asyncio.sleep(0)
    assert await check.check("bob", b"right", STORED, size_bytes=3_000) == "busy"
    small = asyncio.create_task(check.check("eve", b"right", STORED, size_bytes=1_000))
    gate.opened.set()
    assert (await large, await small) == ("accepted", "accepted")
    assert await check.check("bob", b"right", STORED, size_bytes=3_000) == "accepted"
    check.close()


async def test_a_hash_that_fails_says_nothing_about_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    """For example, when there is no memory."""

    def no_memory(_stored: str, _password: bytes) -> bool:
        raise MemoryError

    monkeypatch.setattr(credentials, "verify", no_memory)
    check = CredentialCheck(ManualClock())
    assert await check.check("ann", b"right", STORED) == "busy"
    check.close()


async def test_the_end_answers_all_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """None is left waiting."""
    gate, check = Gate(monkeypatch), CredentialCheck(ManualClock())
    waiting = [asyncio.create_task(check.check("ann", b"right", STORED)) for _ in range(3)]
    await asyncio.sleep(0)
    check.close()
    gate.opened.set()
    assert sorted(await asyncio.gather(*waiting)) == ["accepted", "busy", "busy"]


def test_a_password_for_a_credential_of_scram() -> None:
    """A password sent in the clear is checked against it as well."""
    stored = str(derive("right", b"salt", 4_096))
    assert verify(stored, b"right")
    assert not verify(stored, b"wrong")
