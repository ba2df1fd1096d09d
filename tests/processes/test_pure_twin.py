"""The rooms with typed modules pass their unit tests uncompiled too: elsewhere the suite runs on compiled ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import broker
import grpc_proxy
import mqtt_proxy
import remoting
from remoting.native.choice import PURE_VARIABLE

ROOT = Path(__file__).resolve().parents[2]


def rooms(package: ModuleType) -> list[str]:
    """Where the tests of its typed modules are: their room, and for one beside the rooms its file."""
    named = [module.rpartition(".") for module in package.TYPED.modules]
    return sorted(
        {
            f"tests/unit/{package.TYPED.package}/{room.replace('.', '/') if room else f'test_{module}.py'}"
            for room, _, module in named
        }
    )


@pytest.mark.timeout(900)
@pytest.mark.skipif(bool(mqtt_proxy.TYPED.reason), reason="this whole run is on the pure twin already")
@pytest.mark.parametrize(
    "package", [remoting, broker, grpc_proxy, mqtt_proxy], ids=lambda package: str(package.__name__)
)
def test_unit_tests_pass_on_the_pure_twin(package: ModuleType) -> None:
    """In a process of its own, because the twin is chosen when a package is imported."""
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", *rooms(package)],
        cwd=ROOT, env={**os.environ, PURE_VARIABLE: "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stdout[-4000:]
