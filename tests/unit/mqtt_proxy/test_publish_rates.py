"""Who is charged for publishes, and for how long they wait."""

from __future__ import annotations

from mqtt_proxy.config import QuotaConfig
from mqtt_proxy.quotas import Pause, PublishRates, RatedPublisher

ANN = RatedPublisher("a", "ann", "10.0.0.1")
ANN_AGAIN = RatedPublisher("b", "ann", "10.0.0.2")
NOBODY = RatedPublisher("c", None, "10.0.0.1")


def test_without_quotas_nothing_is_charged() -> None:
    """And no client waits."""
    rates = PublishRates(QuotaConfig())
    assert not rates.active
    assert rates.charge(ANN, 10**6, 10**9, 0) is None


def test_a_client_waits_for_its_own_messages() -> None:
    """Others do not."""
    rates = PublishRates(QuotaConfig(client_messages_per_s=10))
    assert rates.active
    assert rates.charge(ANN, 10, 0, 0) is None
    assert rates.charge(ANN, 5, 0, 0) == Pause(501, "client_messages")
    assert rates.charge(ANN_AGAIN, 5, 0, 0) is None


def test_bytes_and_messages_are_counted_separately() -> None:
    """The longer wait is returned."""
    rates = PublishRates(QuotaConfig(client_messages_per_s=10, client_bytes_per_s=1_000))
    assert rates.charge(ANN, 1, 3_000, 0) == Pause(2_001, "client_bytes")
    assert rates.charge(ANN, 100, 0, 0) == Pause(9_101, "client_messages")


def test_clients_of_a_user_share_its_quota() -> None:
    """A client without a user has none."""
    rates = PublishRates(QuotaConfig(user_messages_per_s=10))
    assert rates.charge(ANN, 10, 0, 0) is None
    assert rates.charge(ANN_AGAIN, 10, 0, 0) == Pause(1_001, "user_messages")
    assert rates.charge(NOBODY, 1_000, 0, 0) is None


def test_clients_of_an_address_and_of_the_listener_share_their_quotas() -> None:
    """Whatever their users."""
    rates = PublishRates(QuotaConfig(address_messages_per_s=10, listener_bytes_per_s=100))
    assert rates.charge(ANN, 10, 50, 0) is None
    assert rates.charge(NOBODY, 10, 0, 0) == Pause(1_001, "address_messages")
    assert rates.charge(ANN_AGAIN, 0, 150, 0) == Pause(1_001, "listener_bytes")


def test_a_rate_below_one_a_second_lets_one_through() -> None:
    """One every ten seconds."""
    rates = PublishRates(QuotaConfig(client_messages_per_s=0.1))
    assert rates.charge(ANN, 1, 0, 0) is None
    assert rates.charge(ANN, 1, 0, 0) is not None
    assert rates.charge(ANN, 1, 0, 20_000) is None
