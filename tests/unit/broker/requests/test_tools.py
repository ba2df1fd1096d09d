"""Where clients reach a broker, and the ids it makes."""

from __future__ import annotations

from broker.requests.tools import BrokerIdentity


def test_the_address_follows_the_port() -> None:
    identity = BrokerIdentity(epoch=1, started_ms=2, started_position=3)
    identity.host, identity.port = "h", 4_712
    assert (identity.address, identity.readers_address()) == ("h:4712", None)


def test_ids_are_unique_and_of_32_digits() -> None:
    identity = BrokerIdentity(epoch=1, started_ms=2, started_position=0)
    ids = {identity.unique_id() for _ in range(3)}
    assert len(ids) == 3
    assert {len(one) for one in ids} == {32}
