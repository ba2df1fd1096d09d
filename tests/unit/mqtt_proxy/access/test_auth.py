"""Authentication and authorisation: loopback, the password file and its changes, the server's own topics."""

from __future__ import annotations

from pathlib import Path

import argon2
import pytest

from mqtt_proxy.access.auth import Authenticator
from mqtt_proxy.access.counters import AccessCounters
from mqtt_proxy.access.identity import Action, Identity, Unproven
from mqtt_proxy.access.password_file import PasswordFileError
from runtime.clock import ManualClock
from runtime.metrics import Registry

HASHER = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)


def make(path: Path | None, **options: object) -> tuple[Authenticator, AccessCounters, ManualClock]:
    counters, clock = AccessCounters(Registry()), ManualClock(monotonic_ns=10_000_000)
    return Authenticator(path, clock=clock, counters=counters, **options), counters, clock  # type: ignore[arg-type]


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


async def test_anonymous_is_for_loopback_only() -> None:
    """Without a password file everybody on this machine and nobody else."""
    auth, counters, _ = make(None)
    assert await auth.authenticate(None, None, loopback=True) == Identity("", anonymous=True)
    assert await auth.authenticate("ann", b"x", loopback=True) == Identity("ann", anonymous=True)
    assert await auth.authenticate(None, None, loopback=False) is Unproven.DENIED
    assert await auth.authenticate("ann", b"x", loopback=False) is Unproven.DENIED
    assert counters.authentications.child("not_loopback").value == 2


async def test_password_file(tmp_path: Path) -> None:
    """A user name is always checked when there is a file, also on loopback."""
    auth, counters, _ = make(write(tmp_path / "users", f"ann:{HASHER.hash('right')}\ngarbage\n"))
    assert await auth.authenticate("ann", b"right", loopback=False) == Identity("ann", anonymous=False)
    assert await auth.authenticate("ann", b"wrong", loopback=True) is Unproven.DENIED
    assert await auth.authenticate("ann", None, loopback=True) is Unproven.DENIED
    assert await auth.authenticate("garbage", b"", loopback=True) is Unproven.DENIED
    assert await auth.authenticate(None, None, loopback=False) is Unproven.DENIED
    assert counters.authentications.child("denied").value == 3
    assert counters.password_file_problems.value == 1
    auth.close()


async def test_changes_take_effect_and_a_broken_file_denies_everybody(tmp_path: Path) -> None:
    """The file is looked at again after a second; when it may not be used any more nobody gets in."""
    path = write(tmp_path / "users", f"ann:{HASHER.hash('one')}\n")
    auth, _, clock = make(path)
    assert isinstance(await auth.authenticate("ann", b"one", loopback=False), Identity)
    write(path, f"ann:{HASHER.hash('two')}\n# changed\n")
    clock.advance_ms(1_000)
    assert await auth.authenticate("ann", b"one", loopback=False) is Unproven.DENIED
    assert isinstance(await auth.authenticate("ann", b"two", loopback=False), Identity)
    path.chmod(0o644)
    clock.advance_ms(1_000)
    assert await auth.authenticate("ann", b"two", loopback=False) is Unproven.DENIED
    path.chmod(0o600)
    clock.advance_ms(1_000)
    assert isinstance(await auth.authenticate("ann", b"two", loopback=False), Identity)
    path.unlink()
    clock.advance_ms(1_000)
    assert await auth.authenticate("ann", b"two", loopback=False) is Unproven.DENIED
    auth.close()


def test_a_file_that_may_not_be_used_stops_the_start(tmp_path: Path) -> None:
    """Starting without the users that were asked for would be a surprise."""
    path = tmp_path / "users"
    with pytest.raises(PasswordFileError):
        make(path)
    path.write_text("")
    path.chmod(0o604)
    with pytest.raises(PasswordFileError, match="chmod 600"):
        make(path)


def test_authorize() -> None:
    """Allowed by default, `$` topics never for publishing, rules on top."""
    auth, counters, _ = make(None, rules=lambda who, action, topic: topic != b"secret" or who.name == "ann")
    ann, bob = Identity("ann", anonymous=False), Identity("bob", anonymous=False)
    assert auth.authorize(ann, Action.PUBLISH, b"a/b")
    assert auth.authorize(ann, Action.SUBSCRIBE, "a/#")
    assert not auth.authorize(ann, Action.PUBLISH, b"$SYS/x")
    assert not auth.authorize(ann, Action.WILL, "$SYS/x")
    assert auth.authorize(ann, Action.SUBSCRIBE, "$SYS/#")
    assert not auth.authorize(ann, Action.SUBSCRIBE, "$share/group/a")
    assert auth.authorize(ann, Action.SUBSCRIBE, "secret")
    assert not auth.authorize(bob, Action.SUBSCRIBE, "secret")
    assert counters.denials.child("publish", "dollar_topic").value == 1
    assert counters.denials.child("subscribe", "rules").value == 1
