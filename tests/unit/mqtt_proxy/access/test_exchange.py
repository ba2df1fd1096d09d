"""One enhanced authentication, from the method's name to an identity or a refusal."""

from __future__ import annotations

import pytest
import structlog

from mqtt_proxy.access.exchange import Exchange, Exchanges, Proven
from mqtt_proxy.access.methods.scram import MECHANISM, derive
from mqtt_proxy.metrics import AccessCounters
from remoting.access.rules import Identity, Shown, Unproven
from runtime.metrics import Registry
from tests.support.scram_client import ScramClient

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


def test_who_knows_the_password_is_the_user() -> None:
    """And so does the server; a user name in the CONNECT, or a certificate, must be the same."""
    for shown in ({}, {"username": "ann"}, {"certificate": "ann", "username": ""}):
        exchange, counters = begin(**shown)
        client, outcome = run(exchange)
        assert isinstance(outcome, Proven)
        assert outcome.identity == Identity("ann", False, "c")
        assert client.believes(outcome.proof)
        assert counters.authentications.child("accepted", "scram").value == 1


@pytest.mark.parametrize("shown", [{}, {"username": "bob"}, {"certificate": "bob"}])
def test_everybody_else_is_denied(shown: dict[str, str]) -> None:
    """Counted once, and no secret is logged."""
    exchange, counters = begin(**shown)
    with structlog.testing.capture_logs() as said:
        assert run(exchange, "s3cret" if shown else "wrong")[1] is Unproven.DENIED
    assert counters.authentications.child("denied", "scram").value == 1
    assert [one["event"] for one in said] == ["mqtt_authentication_failed"]
    assert STORED.rsplit("$", maxsplit=1)[-1] not in repr(said)


def test_messages_that_are_none() -> None:
    """Nothing at all, too."""
    for message in (None, b"", b"what"):
        exchange, counters = begin()
        assert exchange.challenge(message) is Unproven.DENIED
        assert counters.authentications.child("denied", "scram").value == 1
    exchange, _ = begin()
    exchange.challenge(ScramClient("ann", "").first())
    assert exchange.prove(None) is Unproven.DENIED


def test_what_is_not_offered() -> None:
    """Another method, or a proxy without a password file."""
    counters = AccessCounters(Registry())
    assert Exchanges(None, counters).begin(MECHANISM, Shown()) is None
    assert Exchanges({"ann": STORED}.get, counters).begin("SCRAM-SHA-1", Shown()) is None
