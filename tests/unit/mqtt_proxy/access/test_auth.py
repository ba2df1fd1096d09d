"""The chain of methods: their order, which answer counts, and what happens when none answers."""

from __future__ import annotations

from typing import Any

import pytest
import structlog

from mqtt_proxy.access.auth import (
    GROUPS_MAX,
    RULES_MAX,
    Authenticator,
    ClaimError,
    Exchange,
    Exchanges,
    Proven,
    Waits,
    is_name,
    rules_of,
    texts,
)
from mqtt_proxy.access.scram import MECHANISM, derive
from mqtt_proxy.metrics import AccessCounters
from remoting.access.acl_file import AclError
from remoting.access.rules import Identity, Shown, Unproven
from runtime.files import WatchedFile
from runtime.metrics import Registry
from tests.support.scram_client import ScramClient

ANN = Identity("ann", anonymous=False)


class Fixed:
    """Always gives the same answer."""

    def __init__(self, name: str, answer: Identity | Unproven | None, *, later: bool = False) -> None:
        self.name = name
        self._answer = answer
        self._later = later
        self.asked = 0
        self.looked = self.closed = False

    def at_hand(self, shown: Shown) -> Identity | Unproven | Waits | None:
        return Waits.LATER if self._later else self._answer

    async def check(self, shown: Shown) -> Identity | Unproven | None:
        self.asked += 1
        return self._answer

    def refresh(self) -> None:
        self.looked = True

    def files(self) -> tuple[WatchedFile[Any], ...]:
        return (self.name,)  # type: ignore[return-value]  # handed on, not looked into

    async def close(self) -> None:
        self.closed = True


def chain(*methods: Fixed) -> tuple[Authenticator, AccessCounters]:
    counters = AccessCounters(Registry())
    return Authenticator(methods, counters), counters


async def test_the_first_that_answers_decides() -> None:
    """A refusal is final: no later method admits a client that an earlier one refused."""
    first, second, third = Fixed("a", None), Fixed("b", Unproven.DENIED), Fixed("c", ANN)
    auth, counters = chain(first, second, third)
    assert await auth.authenticate(Shown(username="ann")) is Unproven.DENIED
    assert (first.asked, second.asked, third.asked) == (1, 1, 0)
    assert counters.authentications.child("denied", "b").value == 1
    auth, counters = chain(first, third, second)
    assert await auth.authenticate(Shown(username="ann")) == ANN
    assert counters.authentications.child("accepted", "c").value == 1


async def test_anonymous_is_for_loopback_only() -> None:
    """Without any method a user name is only a claim; with one it must be proved, on loopback too."""
    auth, counters = chain()
    assert await auth.authenticate(Shown(client_id="c", loopback=True)) == Identity("", True, "c")
    assert await auth.authenticate(Shown(username="ann", loopback=True)) == Identity("ann", True)
    assert await auth.authenticate(Shown()) is Unproven.DENIED
    assert await auth.authenticate(Shown(username="ann", password=b"x")) is Unproven.DENIED
    assert counters.authentications.child("not_loopback", "none").value == 2
    auth, counters = chain(Fixed("a", None))
    assert await auth.authenticate(Shown(loopback=True)) == Identity("", True)
    assert await auth.authenticate(Shown(username="ann", loopback=True)) is Unproven.DENIED
    assert counters.authentications.child("no_method", "none").value == 1


async def test_no_secret_is_logged() -> None:
    """Neither a refusal nor the objects that contain a password reveal it."""
    auth, _ = chain(Fixed("a", Unproven.DENIED))
    shown = Shown(username="ann", password=b"s3cret", address="10.0.0.9")
    with structlog.testing.capture_logs() as said:
        await auth.authenticate(shown)
        await chain()[0].authenticate(shown)
    assert len(said) == 2
    assert "s3cret" not in repr(said) + repr(shown)


async def test_all_methods_are_told_of_changes_and_of_the_end() -> None:
    """Each has its own files and threads."""
    methods = [Fixed("a", None), Fixed("b", None)]
    auth, _ = chain(*methods)
    auth.refresh()
    await auth.close()
    assert auth.files() == ["a", "b"]
    assert all(one.looked and one.closed for one in methods)


async def test_an_immediate_answer_is_the_one_that_waiting_would_give() -> None:
    """In the same order, counted once; a method that has to wait hides those behind it."""
    none, denied, later = Fixed("a", None), Fixed("b", Unproven.DENIED), Fixed("c", ANN, later=True)
    auth, counters = chain(none, denied, later)
    assert auth.at_hand(Shown(username="ann")) is Unproven.DENIED
    assert counters.authentications.child("denied", "b").value == 1
    auth, counters = chain(none, later, denied)
    assert auth.at_hand(Shown(username="ann")) is None
    assert await auth.authenticate(Shown(username="ann")) == ANN
    assert counters.authentications.child("accepted", "c").value == 1
    nobody, _ = chain()
    assert nobody.at_hand(Shown(loopback=True)) == Identity("", anonymous=True)


STORED = str(derive("s3cret", b"salt", 4_096))


def begin(**shown: str) -> tuple[Exchange, AccessCounters]:
    counters = AccessCounters(Registry())
    exchange = Exchanges({"ann": STORED}.get, counters).begin(MECHANISM, Shown(client_id="c", **shown))  # type: ignore[arg-type]
    assert exchange is not None
    return exchange, counters


def run(exchange: Exchange, password: str = "s3cret") -> tuple[ScramClient, Proven | Unproven]:
    client = ScramClient("ann", password)
    challenge = exchange.challenge(client.first())
    assert isinstance(challenge, bytes)
    return client, exchange.prove(client.final(challenge))


def test_a_client_that_knows_the_password_is_the_user() -> None:
    """The server proves itself too; a user name in the CONNECT, or a certificate, must match."""
    for shown in ({}, {"username": "ann"}, {"certificate": "ann", "username": ""}):
        exchange, counters = begin(**shown)
        client, outcome = run(exchange)
        assert isinstance(outcome, Proven)
        assert outcome.identity == Identity("ann", False, "c")
        assert client.believes(outcome.proof)
        assert counters.authentications.child("accepted", "scram").value == 1


@pytest.mark.parametrize("shown", [{}, {"username": "bob"}, {"certificate": "bob"}])
def test_all_others_are_denied(shown: dict[str, str]) -> None:
    """Counted once, and no secret is logged."""
    exchange, counters = begin(**shown)
    with structlog.testing.capture_logs() as said:
        assert run(exchange, "s3cret" if shown else "wrong")[1] is Unproven.DENIED
    assert counters.authentications.child("denied", "scram").value == 1
    assert [one["event"] for one in said] == ["mqtt_authentication_failed"]
    assert STORED.rsplit("$", maxsplit=1)[-1] not in repr(said)


def test_invalid_messages() -> None:
    """Empty ones included."""
    for message in (None, b"", b"what"):
        exchange, counters = begin()
        assert exchange.challenge(message) is Unproven.DENIED
        assert counters.authentications.child("denied", "scram").value == 1
    exchange, _ = begin()
    exchange.challenge(ScramClient("ann", "").first())
    assert exchange.prove(None) is Unproven.DENIED


def test_methods_that_are_not_offered() -> None:
    """An unknown one, or any where the proxy has no password file."""
    counters = AccessCounters(Registry())
    assert Exchanges(None, counters).begin(MECHANISM, Shown()) is None
    assert Exchanges({"ann": STORED}.get, counters).begin("SCRAM-SHA-1", Shown()) is None


def test_rules() -> None:
    """As with `pattern`; nothing at all means no rules."""
    first, second = rules_of(["readwrite a/%c", "deny b"], "token")
    assert (first.filter, first.pattern, first.place) == (b"a/%c", True, "token:1")
    assert not second.allow
    assert rules_of(None, "token") == ()


@pytest.mark.parametrize("value", [[], "read a", [1], [None], {"a": 1}, ["a"] * (RULES_MAX + 1)])
def test_invalid_rules(value: object) -> None:
    """They are never taken for the absence of rules."""
    with pytest.raises(ClaimError):
        rules_of(value, "token")


def test_one_invalid_rule_spoils_all() -> None:
    """It is named."""
    with pytest.raises(AclError, match="rule 2: "):
        rules_of(["a", "deney b/c"], "token")


def test_names() -> None:
    """Printable text of a bounded size."""
    assert texts(["a", "b c"]) == ("a", "b c")
    assert not is_name("")
    assert not is_name("a\0")
    assert not is_name("ä" * 129)
    assert is_name("ä" * 128)
    for value in ("a", [""], [1], ["a\n"], ["a"] * (GROUPS_MAX + 1), None):
        with pytest.raises(ClaimError):
            texts(value)


class Undecided:
    """A method that did not look at the proof."""

    name = "password"

    def __init__(self, why: Unproven) -> None:
        self.why = why

    def at_hand(self, _shown: Shown) -> Unproven:
        """Why not."""
        return self.why


@pytest.mark.parametrize("why", [Unproven.BUSY, Unproven.LEFT, Unproven.UNAVAILABLE])
def test_a_proof_that_was_not_looked_at_has_not_failed(why: Unproven) -> None:
    """Neither in the log nor among the failed ones: who bans addresses by these must not ban a device that waited."""
    counters = AccessCounters(Registry())
    with structlog.testing.capture_logs() as said:
        assert Authenticator([Undecided(why)], counters).at_hand(Shown(username="ann")) is why  # type: ignore[list-item]
    assert "mqtt_authentication_failed" not in [one["event"] for one in said]
    assert counters.undecided.child(why.value, "password").value == 1
    assert counters.authentications.child(why.value, "password").value == 0
