"""The declared options: sound defaults, documented fields."""

from __future__ import annotations

import ast
import inspect

import pytest

from controller import config
from controller.config import ControllerConfig
from runtime.config import ConfigError, Flag, keys_of, load


def test_defaults_listen_on_this_machine_only():
    loaded = ControllerConfig()
    assert loaded.host == "127.0.0.1"
    assert not loaded.open_to_all
    assert loaded.access_keys == ()


def test_every_option_is_documented():
    (table,) = (node for node in ast.parse(inspect.getsource(config)).body if isinstance(node, ast.ClassDef))
    tables = ("tls", "dial_tls")
    fields = [node for node in table.body[1:] if not (isinstance(node, ast.AnnAssign) and node.target.id in tables)]
    own = [key for key, _, _ in keys_of(ControllerConfig) if "." not in key]
    assert [type(node) for node in fields] == [ast.AnnAssign, ast.Expr] * len(own)


def test_values_are_checked():
    with pytest.raises(ConfigError, match="port"):
        load(ControllerConfig, flags=[Flag("port", "--port", "70000")])
