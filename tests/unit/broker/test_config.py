"""The broker's table loads from every source and documents each option."""

from __future__ import annotations

import pytest

from broker.config import BrokerConfig
from runtime.config import ConfigError, Flag, load
from tools.configuration_reference import render


def test_defaults_environment_and_flags() -> None:
    environ = {"LIGHTMQ_BROKER__LIMITS__TOPICS_MAX": "7", "LIGHTMQ_BROKER__STORE__FLUSH": "async"}
    flags = [Flag("controllers", "--controllers", ""), Flag("port", "--port", "0")]
    config = load(BrokerConfig, section="broker", environ=environ, flags=flags).value
    assert (config.limits.topics_max, config.store.flush, config.controllers, config.port) == (7, "async", (), 0)
    assert config.broker_name == "broker-a"


def test_mistakes_are_named() -> None:
    with pytest.raises(ConfigError, match="broker_name"):
        load(BrokerConfig, flags=[Flag("broker_nam", "--broker-nam", "x")])
    with pytest.raises(ConfigError, match="port"):
        load(BrokerConfig, flags=[Flag("port", "--port", "70000")])


def test_every_option_is_documented() -> None:
    page = render([("broker", BrokerConfig)])
    assert "session_expiry_s" in page
    assert "commit_group_bytes_max" in page
