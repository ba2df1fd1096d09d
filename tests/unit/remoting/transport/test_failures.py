"""Failures name the party, the place and the remedy."""

from __future__ import annotations

import pytest

from remoting.protocol.errors import LightMQError, Refused
from remoting.protocol.frames.commands import Command
from remoting.transport.failures import ConnectionLost, RequestTimeout, Unreachable, checked, not_master


def test_unreachable_names_address_and_remedy():
    error = Unreachable("broker.example", 9876, ConnectionRefusedError(111, "Connection refused"))
    assert "broker.example:9876 (Connection refused)" in str(error)
    assert "lightmq up" in str(error)
    assert isinstance(error, ConnectionLost)
    assert "(TimeoutError)" in str(Unreachable("h", 1, TimeoutError()))


def test_timeout_is_both_ours_and_pythons():
    error = RequestTimeout(105, "h:1", 30)
    assert isinstance(error, LightMQError)
    assert isinstance(error, TimeoutError)


def test_checked_passes_success_and_raises_refusals():
    assert checked(Command(0, body=b"x")).body == b"x"
    with pytest.raises(Refused, match="no topic") as caught:
        checked(Command(17, remark="no topic"))
    assert caught.value.code == 17
    with pytest.raises(Refused, match="refused with code 2"):
        checked(Command(2))


def test_a_refusal_of_a_replica_names_the_master():
    """And whether the request was begun; anything else is no such answer."""
    fields = {"masterAddress": "h:1", "masterEpoch": "7", "outcome": "unknown"}
    error = not_master(Command(9101, remark="a replica", fields=fields))
    assert error is not None
    assert (str(error), error.address, error.epoch, error.is_begun) == ("a replica", "h:1", 7, True)
    plain = not_master(Command(9101, fields={"masterEpoch": "x"}))
    assert plain is not None
    assert (plain.address, plain.epoch, plain.is_begun) == ("", 0, False)
    assert isinstance(plain, ConnectionLost)
    assert not_master(Command(0)) is None
    assert not_master(Command(14)) is None
    assert not_master(Command(14, fields={"masterEpoch": ""})) is not None
