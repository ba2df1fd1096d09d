"""Users of the password file, and changes of the file."""

from __future__ import annotations

import asyncio
from pathlib import Path

import argon2
import pytest

from mqtt_proxy.access import credentials, password_method
from mqtt_proxy.access.auth import Waits
from mqtt_proxy.access.password_method import PasswordFileError, PasswordMethod
from mqtt_proxy.access.scram import derive
from mqtt_proxy.metrics import AccessCounters
from remoting.access.rules import Identity, Shown, Unproven
from runtime.metrics import Registry
from tests.support.clock import ManualClock

HASHER = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)


def make(path: Path, *, last: bool = True) -> tuple[PasswordMethod, AccessCounters, ManualClock]:
    counters, clock = AccessCounters(Registry()), ManualClock(monotonic_ns=10_000_000)
    return PasswordMethod(path, clock=clock, counters=counters, last=last), counters, clock


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


def shown(name: str | None, password: bytes | None) -> Shown:
    return Shown(client_id="c", username=name, password=password)


async def test_users_in_the_file(tmp_path: Path) -> None:
    """Only the right password is accepted; a CONNECT without a user name is left to other methods."""
    method, counters, _ = make(write(tmp_path / "users", f"ann:{HASHER.hash('right')}\ngarbage\n"))
    assert await method.check(shown("ann", b"right")) == Identity("ann", False, "c")
    assert await method.check(shown("ann", b"wrong")) is Unproven.DENIED
    assert await method.check(shown("ann", None)) is Unproven.DENIED
    assert await method.check(shown("garbage", b"")) is Unproven.DENIED
    assert await method.check(shown(None, None)) is None
    assert counters.password_file_problems.value == 1
    assert method.stored("ann") is not None
    assert method.stored("bob") is None
    await method.close()


async def test_a_recent_success_is_answered_at_once(tmp_path: Path) -> None:
    """Any other user costs a hash, which takes time; an unknown one does too, or timing would reveal valid names."""
    method, _, _ = make(write(tmp_path / "users", f"ann:{HASHER.hash('right')}\n"))
    assert method.at_hand(shown(None, None)) is None
    assert method.at_hand(shown("ann", b"right")) is method.at_hand(shown("bob", b"x")) is Waits.LATER
    assert isinstance(await method.check(shown("ann", b"right")), Identity)
    assert method.at_hand(shown("ann", b"right")) == Identity("ann", False, "c")
    assert method.at_hand(shown("ann", b"wrong")) is Waits.LATER
    await method.close()
    other, _, _ = make(tmp_path / "users", last=False)
    assert other.at_hand(shown("bob", b"x")) is None
    await other.close()


async def test_users_of_other_methods_are_left_to_them(tmp_path: Path) -> None:
    """Only those the file does not name: a wrong password is refused."""
    method, _, _ = make(write(tmp_path / "users", f"ann:{HASHER.hash('right')}\n"), last=False)
    assert await method.check(shown("bob", b"x")) is None
    assert await method.check(shown("ann", b"x")) is Unproven.DENIED
    await method.close()


async def test_changes_take_effect_and_a_broken_file_denies_its_users(tmp_path: Path) -> None:
    """The file is checked again after a second; while it is unusable none of its users is admitted."""
    path = write(tmp_path / "users", f"ann:{HASHER.hash('one')}\n")
    method, _, clock = make(path)
    assert isinstance(await method.check(shown("ann", b"one")), Identity)
    write(path, f"ann:{HASHER.hash('two')}\n# changed\n")
    method.refresh()
    assert await method.check(shown("ann", b"one")) is Unproven.DENIED
    assert isinstance(await method.check(shown("ann", b"two")), Identity)
    for break_it, mend in ((lambda: path.chmod(0o644), lambda: path.chmod(0o600)), (path.unlink, lambda: None)):
        break_it()
        clock.advance_ms(1_000)
        assert await method.check(shown("ann", b"two")) is Unproven.DENIED
        mend()
        clock.advance_ms(1_000)
        assert isinstance(await method.check(shown("ann", b"two")), Identity) is path.exists()
    await method.close()


async def test_a_temporary_failure_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that could not be read for lack of descriptors is read once there are some, although it did not change."""
    path = write(tmp_path / "users", f"ann:{HASHER.hash('one')}\n")
    method, _, clock = make(path)
    write(path, f"ann:{HASHER.hash('two')}\n# changed\n")

    def no_descriptor(_path: Path) -> None:
        raise PasswordFileError("Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(password_method, "load", no_descriptor)
        assert await method.check(shown("ann", b"two")) is Unproven.DENIED
    clock.advance_ms(1_000)
    assert isinstance(await method.check(shown("ann", b"two")), Identity)
    await method.close()


def test_an_unusable_file_stops_the_start(tmp_path: Path) -> None:
    """A start without the requested users would be a surprise."""
    path = tmp_path / "users"
    with pytest.raises(PasswordFileError):
        make(path)
    path.write_text("")
    path.chmod(0o604)
    with pytest.raises(PasswordFileError, match="chmod 600"):
        make(path)


async def test_an_unknown_user_costs_as_much_as_a_known_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An existing credential is tried, always the same one for a name; its password does not admit the unknown user."""
    hashes = [HASHER.hash("right"), str(derive("right", b"salt", 4_096))]
    method, _, _ = make(write(tmp_path / "users", f"ann:{hashes[0]}\nsam:{hashes[1]}\n"))
    tried: list[str] = []
    real = credentials.verify
    monkeypatch.setattr(credentials, "verify", lambda stored, password: tried.append(stored) or real(stored, password))
    for name in [f"user{number}" for number in range(20)] * 2:
        assert await method.check(shown(name, b"right")) is Unproven.DENIED
    assert tried[:20] == tried[20:]
    assert set(tried) == set(hashes)
    assert method.like_scram("nobody") == hashes[1]
    write(tmp_path / "users", "# nobody\n")
    method.refresh()
    assert method.stored("ann") is None
    assert method.like_scram("nobody") is None
    await method.close()


@pytest.mark.parametrize("after", ["", f"ann:{HASHER.hash('other')}\n"], ids=["removed", "changed"])
async def test_a_user_who_is_removed_while_the_check_waits_is_denied(tmp_path: Path, after: str) -> None:
    """Whoever waited with the right password of before is not let in by it, nor remembered for the next time."""
    users = write(tmp_path / "users", f"ann:{HASHER.hash('right')}\n")
    method, _, clock = make(users)
    waiting = asyncio.ensure_future(method.check(shown("ann", b"right")))
    await asyncio.sleep(0)
    write(users, after)
    clock.advance_ms(password_method.RELOAD_INTERVAL_MS)
    assert await waiting is Unproven.DENIED
    assert method.at_hand(shown("ann", b"right")) is Waits.LATER
    await method.close()
