"""Tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightmq.cli.options import ConfigOptions, check_filter, check_qos, check_topic, configuration
from lightmq.cli.outcome import CommandFailed, CommandMisused
from runtime.config import Flag


def test_options_become_configuration(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text("[proxy]\nport = 1\n")
    options = ConfigOptions(config=file, values=["broker.port=5"], log_level="debug", log_json=True)
    loaded = configuration(options, [Flag("proxy.port", "--mqtt-port", 2), Flag("up.admin_port", "--admin-port", None)])
    assert (loaded.value.broker.port, loaded.value.proxy.port, loaded.value.logs.level) == (5, 2, "debug")
    assert loaded.value.logs.json
    assert str(loaded.origins["proxy.port"]) == "flag --mqtt-port"
    assert str(loaded.origins["broker.port"]) == "flag --set broker.port"
    assert str(loaded.origins["up.admin_port"]) == "default"


def test_a_set_without_a_value_is_explained() -> None:
    with pytest.raises(CommandMisused, match="KEY=VALUE"):
        configuration(ConfigOptions(values=["broker.port"]))


def test_good_ones_pass() -> None:
    check_qos(2)
    check_topic("a/b")
    check_filter("a/+/#")


def test_bad_ones_are_named() -> None:
    with pytest.raises(CommandFailed, match="--qos must be 0, 1 or 2, not 3"):
        check_qos(3)
    with pytest.raises(CommandFailed, match="'a/#' cannot be published to"):
        check_topic("a/#")
    with pytest.raises(CommandFailed, match="'a/#/b' is not a topic filter"):
        check_filter("a/#/b")
