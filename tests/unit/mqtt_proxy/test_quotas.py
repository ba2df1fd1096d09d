"""Quotas at the listener and at CONNECT."""

from __future__ import annotations

from mqtt_proxy.config import QuotaConfig
from mqtt_proxy.quotas import Quotas, SocketOpening


def test_without_quotas_everything_is_allowed() -> None:
    """Zero forbids nothing."""
    quotas = Quotas(QuotaConfig())
    assert all(quotas.opening("x", 0) is SocketOpening.OPEN for _ in range(1_000))
    assert all(quotas.join("ann", f"c{number}") for number in range(1_000))
    assert quotas.keep_alive_s(0) == 0
    assert quotas.keep_alive_s(65_535) == 65_535
    assert not quotas.filter_refused("#")


def test_an_address_that_connects_too_fast_is_refused_then_cut() -> None:
    """A burst is accepted, a burst is refused, then sockets are cut; other addresses are not affected."""
    quotas = Quotas(QuotaConfig(connects_per_address_per_s=1, connects_per_address_burst=2))
    seen = [quotas.opening("x", 0) for _ in range(5)]
    assert seen == [
        SocketOpening.OPEN,
        SocketOpening.OPEN,
        SocketOpening.OVER_RATE,
        SocketOpening.OVER_RATE,
        SocketOpening.CUT,
    ]
    assert quotas.opening("y", 0) is SocketOpening.OPEN
    assert quotas.opening("x", 1_000) is SocketOpening.OVER_RATE
    assert quotas.opening("x", 6_000) is SocketOpening.OPEN


def test_the_clients_of_a_user_are_limited() -> None:
    """One that leaves makes room."""
    quotas = Quotas(QuotaConfig(connections_per_user_max=2))
    assert quotas.join("ann", "a")
    assert quotas.join("ann", "b")
    assert not quotas.join("ann", "c")
    assert quotas.join("bob", "c")
    quotas.leave("ann", "a")
    assert quotas.join("ann", "c")


def test_a_take_over_does_not_count_twice() -> None:
    """The same client id connects before its old connection has ended."""
    quotas = Quotas(QuotaConfig(connections_per_user_max=1))
    assert quotas.join("ann", "a")
    assert quotas.join("ann", "a")
    quotas.leave("ann", "a")
    assert not quotas.join("ann", "b")
    quotas.leave("ann", "a")
    assert quotas.join("ann", "b")


def test_the_longest_keep_alive() -> None:
    """No keep-alive counts as the longest."""
    quotas = Quotas(QuotaConfig(keep_alive_s_max=60))
    assert [quotas.keep_alive_s(asked) for asked in (0, 30, 60, 61)] == [60, 30, 60, 60]


def test_the_largest_retained_payload() -> None:
    """The limit itself is allowed; without one everything is."""
    quotas = Quotas(QuotaConfig(retained_payload_bytes_max=10))
    assert not quotas.retained_too_large(10)
    assert quotas.retained_too_large(11)
    assert not Quotas(QuotaConfig()).retained_too_large(10**9)


def test_filters_that_are_too_wide() -> None:
    """The configured ones and wider ones; narrower ones are left to other checks."""
    quotas = Quotas(QuotaConfig(filters_refused=("#", "fleet/+/raw")))
    assert quotas.filter_refused("#")
    assert quotas.filter_refused("+/#")
    assert quotas.filter_refused("fleet/#")
    assert quotas.filter_refused("fleet/+/+")
    assert quotas.filter_refused("$share/g/#")
    assert not quotas.filter_refused("fleet/7/raw")
    assert not quotas.filter_refused("+/a")
