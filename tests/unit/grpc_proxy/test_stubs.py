"""The generated messages are loaded without the client that they come with."""

from __future__ import annotations

import importlib.machinery
import os
import subprocess
import sys
from pathlib import Path

import pytest

from grpc_proxy import stubs
from tests.support.tree import ROOT

PROGRAM = """
import importlib, sys
from grpc_proxy.stubs import definition
assert definition.Code.OK == 20000
assert not [name for name in sys.modules if name.startswith(("rocketmq.v5", "opentelemetry"))]
import rocketmq
assert rocketmq.Producer and importlib.import_module("rocketmq.grpc_protocol.definition_pb2") is definition
"""


def test_a_server_does_not_execute_the_client(tmp_path: Path):
    environment = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, env=environment, cwd=tmp_path)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.machinery.PathFinder, "find_spec", lambda *_: None)
    with pytest.raises(stubs.StubsMissing, match="install the extra `grpc`"):
        stubs._load("definition_pb2")
