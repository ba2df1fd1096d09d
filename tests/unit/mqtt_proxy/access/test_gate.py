"""The gate as a whole: files read at the start, changed while it runs, and broken in between."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mqtt_proxy.access import gate as gate_module
from mqtt_proxy.access.contract import AccessControl
from mqtt_proxy.access.gate import Gate
from mqtt_proxy.access.methods.password_method import PasswordMethod
from mqtt_proxy.access.methods.scram import MECHANISM
from mqtt_proxy.metrics import AccessCounters
from remoting.access.rules import WRITE_ALL_MASK, Action, Identity, Shown
from runtime.clock import SystemClock
from runtime.metrics import Registry

ANN = Identity("ann", False, "c")


def make(acl: Path | None) -> tuple[Gate, AccessCounters]:
    counters = AccessCounters(Registry())
    return Gate((), acl, clock=SystemClock(), counters=counters), counters


def write(path: Path, text: str) -> Path:
    fresh = path.with_name(path.name + ".fresh")
    fresh.write_text(text)
    fresh.replace(path)
    return path


async def changed(gate: Gate) -> None:
    """Wait until other rules are in force."""
    event = asyncio.Event()
    gate.on_change(event.set)
    await asyncio.wait_for(event.wait(), 20)


async def test_without_a_list_everything_is_open() -> None:
    """And without a password file everybody on this machine gets in."""
    gate, _ = make(None)
    access: AccessControl = gate
    gate.start()
    assert await access.authenticate(Shown(client_id="c", loopback=True)) == Identity("", True, "c")
    assert access.authorize(ANN, Action.SUBSCRIBE, "#")
    assert access.write_mask(ANN, b"a") == WRITE_ALL_MASK
    await gate.close()


@pytest.mark.parametrize("text", ["", "topic read #\nwhat\n", None])
async def test_a_list_that_is_no_use_at_the_start_denies_everything(tmp_path: Path, text: str | None) -> None:
    """Empty, garbled or missing."""
    path = tmp_path / "acl"
    if text is not None:
        write(path, text)
    gate, counters = make(path)
    assert not gate.authorize(ANN, Action.SUBSCRIBE, "a")
    assert gate.write_mask(ANN, b"a") == 0
    assert counters.reloads.child("acl", "unusable").value == (text != "")
    await gate.close()


async def test_a_change_is_seen_and_a_bad_one_keeps_what_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By looking, without being asked."""
    monkeypatch.setattr(gate_module, "LOOK_INTERVAL_S", 0.01)
    path = write(tmp_path / "acl", "user ann\ntopic a\n")
    gate, counters = make(path)
    gate.start()
    write(path, "user ann\ntopic b\n")
    await changed(gate)
    assert gate.authorize(ANN, Action.SUBSCRIBE, "b")
    assert not gate.authorize(ANN, Action.SUBSCRIBE, "a")
    write(path, "user ann\ntopic a\ngarbled\n")
    while not counters.reloads.child("acl", "kept").value:
        await asyncio.sleep(0.01)
    assert gate.authorize(ANN, Action.SUBSCRIBE, "b")
    assert not gate.authorize(ANN, Action.SUBSCRIBE, "a")
    write(path, "")
    await changed(gate)
    assert not gate.authorize(ANN, Action.SUBSCRIBE, "b")
    await gate.close()


async def test_reload_on_demand(tmp_path: Path) -> None:
    """At once, without the looking; closing while it is under way is no error."""
    path = write(tmp_path / "acl", "user ann\ntopic a\n")
    gate, _ = make(path)
    write(path, "user ann\ntopic b\n")
    gate.reload()
    await changed(gate)
    assert gate.authorize(ANN, Action.SUBSCRIBE, "b")
    gate.reload()
    await gate.close()


async def test_enhanced_authentication_needs_a_password_file(tmp_path: Path) -> None:
    """Its users have the credentials."""
    gate, _ = make(None)
    assert gate.begin_exchange(MECHANISM, Shown()) is None
    await gate.close()
    users = tmp_path / "users"
    users.write_text("")
    users.chmod(0o600)
    counters = AccessCounters(Registry())
    methods = [PasswordMethod(users, clock=SystemClock(), counters=counters)]
    gate = Gate(methods, None, clock=SystemClock(), counters=counters)
    assert gate.begin_exchange(MECHANISM, Shown()) is not None
    await gate.close()
