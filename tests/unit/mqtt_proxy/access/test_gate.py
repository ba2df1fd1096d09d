"""The gate as a whole: its files are read at the start, changed while it runs, and damaged in between."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import structlog

from mqtt_proxy.access import gate
from mqtt_proxy.access import gate as gate_module
from mqtt_proxy.access.auth import AccessControl
from mqtt_proxy.access.gate import DENIALS_LOGGED_PER_S_MAX, Authority, Gate, inner_filter
from mqtt_proxy.access.password_method import PasswordMethod
from mqtt_proxy.access.scram import MECHANISM
from mqtt_proxy.metrics import AccessCounters
from remoting.access.acl_file import parse
from remoting.access.rules import (
    READ_ALL_MASK,
    READ_LIVE,
    RETAINED_MASK,
    WRITE_ALL_MASK,
    Action,
    Identity,
    RuleSet,
    Shown,
    write_bit,
)
from runtime.clock import SystemClock
from runtime.metrics import Registry
from tests.support.clock import ManualClock

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
    """Wait until new rules are in force."""
    event = asyncio.Event()
    gate.on_change(event.set)
    await asyncio.wait_for(event.wait(), 20)


async def test_without_a_list_everything_is_open() -> None:
    """And without a password file everyone on this machine is admitted."""
    gate, _ = make(None)
    access: AccessControl = gate
    gate.start()
    assert await access.authenticate(Shown(client_id="c", loopback=True)) == Identity("", True, "c")
    assert access.authorize(ANN, Action.SUBSCRIBE, "#")
    assert access.write_mask(ANN, b"a") == WRITE_ALL_MASK
    await gate.close()


@pytest.mark.parametrize("text", ["", "topic read #\nwhat\n", None])
async def test_an_unusable_list_at_the_start_denies_everything(tmp_path: Path, text: str | None) -> None:
    """Empty, invalid or missing."""
    path = tmp_path / "acl"
    if text is not None:
        write(path, text)
    gate, counters = make(path)
    assert not gate.authorize(ANN, Action.SUBSCRIBE, "a")
    assert gate.write_mask(ANN, b"a") == 0
    assert counters.reloads.child("acl", "unusable").value == (text != "")
    await gate.close()


async def test_a_change_is_noticed_and_a_bad_one_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By polling, without a request."""
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
    """At once, without waiting for the next poll; closing during a reload is no error."""
    path = write(tmp_path / "acl", "user ann\ntopic a\n")
    gate, _ = make(path)
    write(path, "user ann\ntopic b\n")
    gate.reload()
    await changed(gate)
    assert gate.authorize(ANN, Action.SUBSCRIBE, "b")
    gate.reload()
    await gate.close()


async def test_enhanced_authentication_needs_a_password_file(tmp_path: Path) -> None:
    """It has the users' credentials."""
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


ANNA = Identity("ann", False, "c1")
LIST = b"""\
user ann
topic readwrite a/#
topic deny a/no/#
topic read qos=1 retained=no history=no r/#
topic write qos=0 retain=no will=no w/#
topic read $SYS/broker/#
pattern readwrite dev/%c/#
"""


def authority_of(
    rules: RuleSet | None = None, *, partly: bool = False
) -> tuple[Authority, AccessCounters, ManualClock]:
    counters, clock = AccessCounters(Registry()), ManualClock(monotonic_ns=10_000_000)
    made = Authority(rules or parse(LIST, name="acl"), clock=clock, counters=counters, partly=partly)
    return made, counters, clock


ASKED: dict[str, tuple[tuple[str, str, int, bool], ...]] = {
    # path: (action, topic, QoS, retained) of what is allowed, then of what is not
    "publish": (("publish", "a/x", 2, True), ("publish", "a/no/x", 0, False)),
    "publish elsewhere": (("publish", "dev/c1/x", 0, False), ("publish", "dev/c2/x", 0, False)),
    "publish without a rule": (("publish", "w/x", 0, False), ("publish", "b", 0, False)),
    "publish of a QoS": (("publish", "w/x", 0, False), ("publish", "w/x", 1, False)),
    "publish retained": (("publish", "a/x", 0, True), ("publish", "w/x", 0, True)),
    "publish where only reading is": (("publish", "a/x", 0, False), ("publish", "r/x", 0, False)),
    "publish to the server's own": (("subscribe", "$SYS/broker/x", 0, False), ("publish", "$SYS/broker/x", 0, False)),
    "will": (("will", "a/x", 1, True), ("will", "a/no", 0, False)),
    "will where only publishing is": (("publish", "w/x", 0, False), ("will", "w/x", 0, False)),
    "will to the server's own": (("will", "dev/c1/gone", 0, False), ("will", "$SYS/x", 0, False)),
    "subscribe": (("subscribe", "r/+/x", 0, False), ("subscribe", "w/x", 0, False)),
    "subscribe wider": (("subscribe", "r/#", 0, False), ("subscribe", "#", 0, False)),
    "subscribe across a deny": (("subscribe", "a/x/#", 0, False), ("subscribe", "a/#", 0, False)),
    "subscribe, shared": (("subscribe", "$share/g/r/#", 0, False), ("subscribe", "$share/g/#", 0, False)),
    "subscribe, a group like a topic": (
        ("subscribe", "$share/b/r/x", 0, False),
        ("subscribe", "$share/r/b", 0, False),
    ),
    "subscribe, $SYS": (("subscribe", "$SYS/broker/#", 0, False), ("subscribe", "$SYS/#", 0, False)),
    "history": (("history", "a/x", 0, False), ("history", "r/x", 0, False)),
    "history in the filter": (
        ("subscribe", "$history/l/a/x", 0, False),
        ("subscribe", "$history/l/r/x", 0, False),
    ),
    "history, shared": (
        ("subscribe", "$share/g/$history/l/a/x", 0, False),
        ("subscribe", "$share/g/$history/l/r/x", 0, False),
    ),
    "deliver": (("deliver", "r/x", 0, False), ("deliver", "b", 0, False)),
    "deliver what is retained": (("deliver", "a/x", 0, True), ("deliver", "r/x", 0, True)),
    "deliver behind a deny": (("deliver", "a/x", 0, False), ("deliver", "a/no/x", 0, False)),
}


@pytest.mark.parametrize("path", ASKED)
def test_matrix_of_paths_and_verdicts(path: str) -> None:
    """Each path to a topic has an allowed and a denied case, and a denial is counted under its action."""
    allowed, refused = ASKED[path]
    authority_, counters, _ = authority_of()
    action, topic, qos, retain = allowed
    assert authority_.authorize(ANNA, action, topic, qos=qos, retain=retain)
    action, topic, qos, retain = refused
    verdict = authority_.authorize(ANNA, action, topic.encode(), qos=qos, retain=retain)
    assert not verdict.allowed
    assert counters.denials.child(action, verdict.reason).value == 1


@pytest.mark.parametrize("path", ASKED)
def test_matrix_without_rules_for_other_users(path: str) -> None:
    """What ann may do, others may not; without a list everyone may do everything except publish to the server's
    topics."""
    action, topic, qos, retain = ASKED[path][0]
    authority_, _, _ = authority_of()
    assert not authority_.authorize(Identity("bob", False, "c9"), action, topic, qos=qos, retain=retain)
    assert not authority_.authorize(Identity("ann", True, "c9"), action, topic, qos=qos, retain=retain)
    opened, _, _ = authority_of(RuleSet(open=True))
    for asked in ASKED[path]:
        allowed = asked[0] not in (Action.PUBLISH, Action.WILL) or not asked[1].startswith("$")
        assert bool(opened.authorize(ANNA, asked[0], asked[1], qos=asked[2], retain=asked[3])) is allowed


def test_verdicts_give_the_limit() -> None:
    """The QoS that a subscription is lowered to, and the rule."""
    authority_, _, _ = authority_of()
    verdict = authority_.authorize(ANNA, Action.SUBSCRIBE, "r/x")
    assert (verdict.qos_max, verdict.retained, str(verdict.rule)) == (
        1, False, "acl:4: topic read qos=1 retained=no history=no r/#"
    )  # fmt: skip
    assert authority_.write_mask(ANNA, b"w/x") == write_bit(0, retain=False)
    assert authority_.write_mask(ANNA, b"$SYS/broker/x") == 0


@pytest.mark.parametrize(
    ("asked", "inner", "history"),
    [
        (b"a/b", b"a/b", False),
        (b"$share/g/a/b", b"a/b", False),
        (b"$history/last=1/a", b"a", True),
        (b"$share/g", b"", False),
        (b"$share/g/$share/h/a", b"", False),
        (b"$history/x", b"", True),
        (b"$history/x/$history/y/a", b"", True),
        (b"$share/g/$SYS/#", b"$SYS/#", False),
    ],
)
def test_inner_filters(asked: bytes, inner: bytes, history: bool) -> None:
    """The filter that is really read; nothing hides behind a second prefix."""
    assert inner_filter(asked) == (inner, history)
    authority_, _, _ = authority_of(parse(b"pattern #\n", name="acl"))
    assert bool(authority_.authorize(ANNA, Action.SUBSCRIBE, asked)) is (inner in (b"a/b", b"a"))


def test_rules_are_swapped_as_a_whole() -> None:
    """Cached verdicts are dropped and listeners are notified."""
    authority_, _, _ = authority_of()
    heard: list[int] = []
    authority_.on_change(lambda: heard.append(authority_.write_mask(ANNA, b"a/x")))
    assert authority_.write_mask(ANNA, b"a/x")
    authority_.replace(RuleSet())
    assert heard == [0]


def test_compiled_rules_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rules of the client that was asked about least recently are compiled again."""
    monkeypatch.setattr(gate, "GRANTS_MAX", 2)
    authority_, _, _ = authority_of()
    for name in ("ann", "bob", "ann", "cid"):
        authority_.write_mask(Identity(name, False, "c1"), b"a/x")
    assert [one.name for one in authority_._grants] == ["ann", "cid"]


def test_the_log_is_not_flooded() -> None:
    """A client that asks in a loop does not fill the disk; the next line says how many lines were left out."""
    authority_, counters, clock = authority_of()
    with structlog.testing.capture_logs() as said:
        for _ in range(DENIALS_LOGGED_PER_S_MAX + 30):
            authority_.authorize(ANNA, Action.PUBLISH, b"b")
        clock.advance_ms(1_000)
        authority_.authorize(ANNA, Action.PUBLISH, b"b")
    assert [one["event"] for one in said] == ["mqtt_denied"] * (DENIALS_LOGGED_PER_S_MAX + 1)
    assert said[-1]["not_logged"] == 30
    assert counters.denials.child("publish", "no_rule").value == DENIALS_LOGGED_PER_S_MAX + 31


STATE = "$SYS/broker/connection/{}/state"
BRIDGE = Identity("ann", False, "c1", bridge=True)
STATE_LIST = b"""\
user ann
topic readwrite #
user eve
topic deny $SYS/broker/connection/c1/state
user joe
topic write qos=0 will=no $SYS/broker/connection/+/state
"""


@pytest.mark.parametrize("action", [Action.PUBLISH, Action.WILL])
@pytest.mark.parametrize(
    ("identity", "owner", "allowed"),
    [
        (BRIDGE, "c1", True),
        (BRIDGE, "c2", False),
        (Identity("ann", False, "c1"), "c1", False),  # `#` does not cover topics that begin with $
        (Identity("", True, "c1", bridge=True), "c1", False),
        (Identity("eve", False, "c1", bridge=True), "c1", False),
    ],
)
def test_the_state_of_a_bridge(action: str, identity: Identity, owner: str, allowed: bool) -> None:
    """An authenticated bridge may publish the state of its own client id, retained, and of no other, unless it is
    denied."""
    asked, _, _ = authority_of(parse(STATE_LIST, name="acl"))
    topic = STATE.format(owner)
    assert bool(asked.authorize(identity, action, topic, qos=1, retain=True)) is allowed
    assert not asked.authorize(identity, action, topic, qos=1)
    assert asked.write_mask(identity, topic.encode()) == (RETAINED_MASK if allowed else 0)
    assert not asked.authorize(identity, action, "$SYS/broker/version", retain=True)
    assert not asked.authorize(identity, action, topic + "/more", retain=True)


def test_a_rule_may_allow_the_state_of_any_bridge() -> None:
    """It may also restrict it, as with any other topic."""
    asked, _, _ = authority_of(parse(STATE_LIST, name="acl"))
    joe = Identity("joe", False, "j")
    topic = STATE.format("other")
    assert asked.authorize(joe, Action.PUBLISH, topic, retain=True)
    assert not asked.authorize(joe, Action.PUBLISH, topic, qos=1, retain=True)
    assert not asked.authorize(joe, Action.WILL, topic, retain=True)
    assert asked.write_mask(joe, topic.encode()) == write_bit(0, retain=True)


def test_without_a_list_every_client_may_publish_its_own_state() -> None:
    """For its own client id."""
    opened, _, _ = authority_of(RuleSet(open=True))
    assert opened.authorize(ANNA, Action.WILL, STATE.format("c1"), qos=1, retain=True)
    assert not opened.authorize(ANNA, Action.WILL, STATE.format("c2"), qos=1, retain=True)
    assert not opened.authorize(ANNA, Action.PUBLISH, STATE.format("c1"))
    assert opened.write_mask(ANNA, STATE.format("c1").encode()) == RETAINED_MASK
    assert opened.write_mask(ANNA, STATE.format("c2").encode()) == 0


def test_a_filter_that_may_be_read_in_part() -> None:
    """It is granted the lowest QoS of the rules it touches, and each message is checked by itself."""
    asked, _, _ = authority_of(partly=True)
    for topic_filter, qos in (("a/#", 2), ("$share/g/a/#", 2), ("#", 1), ("$history/l/a/#", 2), ("$SYS/#", 2)):
        verdict = asked.authorize(ANNA, Action.SUBSCRIBE, topic_filter)
        assert (verdict.allowed, verdict.partial, verdict.qos_max) == (True, True, qos)
    assert not asked.authorize(ANNA, Action.SUBSCRIBE, "a/x/#").partial
    for refused in ("a/no/#", "a/no/x", "b/#", "$history/l/r/#", "w/#"):
        assert not asked.authorize(ANNA, Action.SUBSCRIBE, refused)
    assert asked.read_mask(ANNA, b"a/no/x") == asked.read_mask(ANNA, b"b") == 0
    assert asked.read_mask(ANNA, b"a/x") == READ_ALL_MASK
    assert asked.read_mask(ANNA, b"r/x") == READ_LIVE
