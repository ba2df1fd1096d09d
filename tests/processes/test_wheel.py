"""A wheel built from the sources and unpacked elsewhere: compiled modules are in it and in use."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SAY = """
import broker
from broker.store.hot import choice as store
from remoting.hot import compiled
from spark_connector import compiled_columns
import mqtt_proxy
from mqtt_proxy.mqtt import outgoing
typed = mqtt_proxy.TYPED
print(broker.__file__, store.name, store.reason, outgoing.__file__.rpartition(".")[2], typed.name, typed.reason)
"""


def sources(target: Path) -> Path:
    """A copy of what belongs to the project, built extensions left out."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if listed.returncode:
        pytest.skip("these sources are no git checkout")
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name)
    return target


@pytest.mark.timeout(300)
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler, so there is nothing compiled to find in a wheel")
@pytest.mark.slow
def test_a_wheel_brings_its_compiled_modules_and_uses_them(tmp_path: Path) -> None:
    """pip writes the files of a wheel in their order, so that sources are younger than what was built from them."""
    tree = sources(tmp_path / "sources")
    bare = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "LIGHTMQ_PURE"}}
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", str(tmp_path), str(tree)], env=bare, check=True)
    (wheel,) = tmp_path.glob("lightmq-*.whl")
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
    assert any(name.startswith("broker/store/hot/compiled") and name.endswith(".so") for name in names)
    assert any(name.startswith("mqtt_proxy/mqtt/outgoing.") and name.endswith(".so") for name in names)
    assert {"mqtt_proxy/mqtt/outgoing.py", "mqtt_proxy/mqtt/outgoing.pxd"} <= set(names)
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/", "tools/"))]
    site = tmp_path / "site"
    subprocess.run([*pip, "install", "--no-deps", "--target", str(site), str(wheel)], env=bare, check=True)
    said = subprocess.run(
        [sys.executable, "-c", SAY], cwd=tmp_path, env={**bare, "PYTHONPATH": str(site)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert said.stdout.split() == [str(site / "broker" / "__init__.py"), "compiled", "so", "compiled"]
