"""The quotas' options: off by default, documented, checked."""

from __future__ import annotations

import pytest

from mqtt_proxy.config import QuotaConfig
from runtime.config import ConfigError, Flag, attribute_docs, load


def test_every_option_is_documented() -> None:
    """A sentence each."""
    docs = attribute_docs(QuotaConfig)
    assert set(docs) == set(QuotaConfig.__dataclass_fields__)
    assert all(len(text) > 15 for text in docs.values())


def test_values_are_checked() -> None:
    """A list of filters may also be text; a negative rate makes no sense."""
    loaded = load(QuotaConfig, flags=[Flag("client_messages_per_s", "--set", "2.5")]).value
    assert loaded.client_messages_per_s == 2.5
    with pytest.raises(ConfigError, match="client_messages_per_s"):
        load(QuotaConfig, flags=[Flag("client_messages_per_s", "--set", "-1")])
