from __future__ import annotations

from pathlib import Path

import pytest

from lightmq.cli.options import ConfigOptions, configuration
from runtime.config.tables import ConfigError, Flag


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
    with pytest.raises(ConfigError, match="KEY=VALUE"):
        configuration(ConfigOptions(values=["broker.port"]))
