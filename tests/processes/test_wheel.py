"""The wheel that users get: built by the one command, installed without a compiler, its compiled code in use."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = ("3.11", "3.12", "3.13")
SAY = """
import broker
from remoting.native.core import choice as store
from remoting.native.compiled import columns as compiled
import mqtt_proxy
from mqtt_proxy.mqtt.session import in_flight
typed = mqtt_proxy.TYPED
print(broker.__file__, store.name, store.reason, in_flight.__file__.rpartition(".")[2], typed.name, typed.reason)
"""


@pytest.mark.timeout(900)
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler, so there is nothing compiled to find in a wheel")
@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_a_wheel_brings_its_compiled_modules_and_uses_them(tmp_path: Path, version: str) -> None:
    """pip writes the files of a wheel in their order, so that sources are newer than what was built from them."""
    base = interpreter(version)
    if base is None:
        pytest.skip(f"no CPython {version} on this machine")
    bare = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "LIGHTMQ_PURE"}}
    build = [sys.executable, str(ROOT / "tools" / "wheels.py"), "--python", version, "--out", str(tmp_path / "dist")]
    subprocess.run(build, env=bare, check=True)
    (wheel,) = (tmp_path / "dist").glob("lightmq-*.whl")
    assert sys.platform != "linux" or "manylinux_2_" in wheel.name
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
    assert any(name.startswith("remoting/native/compiled/ring.") and name.endswith(".so") for name in names)
    assert any(name.startswith("mqtt_proxy/mqtt/session/in_flight.") and name.endswith(".so") for name in names)
    assert {"mqtt_proxy/mqtt/session/in_flight.py", "mqtt_proxy/mqtt/session/in_flight.pxd"} <= set(names)
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/", "tools/"))]
    python = installed(wheel, base, tmp_path / "environment", bare)
    alone = {**bare, "PATH": str(python.parent), "CC": "false"}
    said = subprocess.run(
        [python, "-c", SAY], cwd=tmp_path, env=alone, capture_output=True, text=True, check=True
    ).stdout.split()
    assert Path(said[0]).is_relative_to(tmp_path / "environment")
    assert said[1:] == ["compiled", "so", "compiled"]
    doctor = [python.with_name("lightmq"), "doctor"]
    found = subprocess.run(doctor, cwd=tmp_path, env=alone, capture_output=True, text=True, check=False).stdout
    assert "compiled core in use" in found, found
    check_console(doctor[0], tmp_path, alone)


def check_console(lightmq: Path, folder: Path, variables: dict[str, str]) -> None:
    """The page and all that it names come out of the wheel, and the token of the first start is let in."""
    command = [lightmq, "up", "--data", folder / "data", "--json"]
    ports = [word for kind in ("mqtt", "remoting", "admin") for word in (f"--{kind}-port", "0")]
    with subprocess.Popen(
        [*command, *ports], cwd=folder, env=variables, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        try:
            told = json.loads(process.stdout.readline())
            place = f"http://127.0.0.1:{told['admin']}"
            with urllib.request.urlopen(f"{place}/console/") as answer:
                files = re.findall(r'(?:src|href)="(/console/static/[^"]+)"', answer.read().decode())
            assert len(files) > 5
            for name in files:
                assert urllib.request.urlopen(place + name).status == 200
            token = {"Authorization": f"Bearer {Path(told['console_token_file']).read_text().strip()}"}
            asked = urllib.request.Request(f"{place}/api/v1/overview", headers=token)
            assert json.load(urllib.request.urlopen(asked))["mode"] == "all in one process"
        finally:
            process.terminate()


SIZE_MAX = 60_000_000
"""Bytes that pip puts on the disk for the core; 8 MB of them are debugging information in the wheels of others."""
LICENCES = """
from importlib import metadata
for one in metadata.distributions():
    fields = one.metadata
    said = [fields.get("License-Expression") or "", *(fields.get_all("Classifier") or [])]
    print(one.metadata["Name"], *(text for text in said if "License" in text or "::" not in text), sep="|")
"""


@pytest.mark.timeout(900)
@pytest.mark.slow
def test_an_installation_of_the_core_is_small_and_free_of_copyleft(tmp_path: Path) -> None:
    """Everything that `pip install lightmq` puts on the disk but bytecode; no numpy, no GPL or LGPL."""
    bare = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "LIGHTMQ_PURE"}}
    build = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path / "dist"), str(ROOT)]
    subprocess.run([sys.executable, *build], env=bare, check=True)
    (wheel,) = (tmp_path / "dist").glob("lightmq-*.whl")
    python = installed(wheel, sys.executable, tmp_path / "environment", bare)
    (packages,) = (tmp_path / "environment" / "lib").glob("python3.*/site-packages")
    sizes = sizes_of(packages)
    assert sum(sizes.values()) <= SIZE_MAX, sorted(sizes.items(), key=lambda one: -one[1])[:12]
    assert not {"numpy", "pandas", "pyarrow", "pyspark"} & set(sizes)
    said = subprocess.run([python, "-c", LICENCES], capture_output=True, text=True, check=True).stdout
    assert len(said.splitlines()) > 15
    assert not re.search(r"GPL|General Public", said), said


def sizes_of(packages: Path) -> dict[str, int]:
    """Bytes of each package but for bytecode."""
    sizes: dict[str, int] = {}
    for path in packages.rglob("*"):
        if path.is_file() and path.suffix != ".pyc":
            name = path.relative_to(packages).parts[0]
            sizes[name] = sizes.get(name, 0) + path.stat().st_size
    return sizes


def interpreter(version: str) -> str | None:
    """A Python of this version with its headers: the one that runs the tests, pyenv's, or one on the path."""
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions").glob(f"{version}.*/bin/python")
    candidates = [sys.executable] if version == running else [*map(str, pyenv), f"python{version}"]
    ask = "import os, sysconfig; print(os.path.exists(sysconfig.get_paths()['include'] + '/Python.h'))"
    for candidate in filter(shutil.which, candidates):
        done = subprocess.run([candidate, "-c", ask], capture_output=True, text=True, check=False)
        if done.stdout.strip() == "True":
            return candidate
    return None


def installed(wheel: Path, base: str, environment: Path, variables: dict[str, str]) -> Path:
    """The interpreter of a new environment with nothing but this wheel and its requirements, all from wheels."""
    uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    subprocess.run([uv, "venv", "--quiet", "--python", base, environment], env=variables, check=True)
    python = environment / "bin" / "python"
    options = ["--quiet", "--python", python, "--only-binary", ":all:", "--no-binary", "pysyncobj"]
    subprocess.run([uv, "pip", "install", *options, wheel], env=variables, check=True)
    return python
