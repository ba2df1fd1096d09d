from __future__ import annotations

from broker.config import BrokerConfig, ReplicationConfig
from broker.replication.promises import promise
from broker.roles.durability import rule_of
from lightmq.cli.admin.cluster import promised
from runtime.config import flatten


def told(config: BrokerConfig) -> dict[str, str]:
    """As a broker answers code 26."""
    return {key: str(value) for key, value in flatten(config)}


def test_the_sentence_is_that_of_the_brokers_configuration() -> None:
    for config in (BrokerConfig(), BrokerConfig(replication=ReplicationConfig(enabled=True, in_sync_min=2))):
        for brokers in (1, 2, 3):
            found = promise(rule_of(config), brokers)
            expected = {"promise": found.text, "warning": found.warning or None}
            assert promised(told(config), brokers) == expected


def test_without_settings_there_is_no_sentence() -> None:
    nothing = {"promise": None, "warning": None}
    assert promised({}, 3) == nothing
    assert promised(told(BrokerConfig()) | {"replication.in_sync_min": "two"}, 3) == nothing
