from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from lightmq.configuration import LogsConfig, UpConfig, load_configuration
from runtime.config import ConfigError, Flag, attribute_docs


def test_one_file_serves_all_parts(tmp_path: Path) -> None:
    file = tmp_path / "lightmq.toml"
    file.write_text(
        '[up]\nremoting_port = 1\n[broker.store]\nflush = "async"\n[proxy]\nport = 2\n[controller]\nport = 3\n'
    )
    loaded = load_configuration(file, {"LIGHTMQ_LOGS__LEVEL": "debug"}, [Flag("up.admin_port", "--admin-port", 4)])
    value = loaded.value
    assert (value.up.remoting_port, value.broker.store.flush, value.proxy.port) == (1, "async", 2)
    assert (value.controller.port, value.logs.level, value.up.admin_port) == (3, "debug", 4)


def test_a_key_of_no_part_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean LIGHTMQ_PROXY__PORT"):
        load_configuration(None, {"LIGHTMQ_PROXY__PROT": "1"})


@pytest.mark.parametrize("table", [UpConfig, LogsConfig])
def test_our_own_keys_are_documented(table: type) -> None:
    assert set(attribute_docs(table)) == {field.name for field in dataclasses.fields(table)}
