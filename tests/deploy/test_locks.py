"""The lock files are whole: every package below the declared ones, each with hashes; the notices name them all."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.arch.test_licences import closure, rows
from tests.deploy.dockerfile import DOCKERFILE, stages
from tests.support.tree import ROOT

LOCKS = ROOT / "deploy" / "locks"
PIN = re.compile(r"^([\w.-]+)==(\S+?)(?: ; [^\\]+)?(?: \\)?$")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
CORE = [*PROJECT["project"]["dependencies"], *EXTRAS["uvloop"]]
DECLARED = {
    "build": PROJECT["build-system"]["requires"],
    "core": CORE,
    "spark": [*CORE, *EXTRAS["spark"], *EXTRAS["jre"]],
}
each_lock = pytest.mark.parametrize("name", sorted(DECLARED))


def locked(name: str) -> dict[str, set[str]]:
    """Package -> its versions; more than one where they differ by Python."""
    found: dict[str, set[str]] = {}
    for line in (LOCKS / f"{name}.txt").read_text().splitlines():
        if line.startswith("    --hash=sha256:"):
            continue
        pin = PIN.match(line)
        assert pin is not None, f"{name}: {line}"
        found.setdefault(canonicalize_name(pin[1]), set()).add(pin[2])
    return found


@each_lock
def test_every_line_is_a_version_with_hashes_and_no_address(name: str) -> None:
    """pip refuses a package without one; an address would tie the build to one index."""
    text = (LOCKS / f"{name}.txt").read_text()
    assert "://" not in text
    assert "--index" not in text
    pins = re.split(r"^(?=\S)", text, flags=re.MULTILINE)[1:]
    assert all("--hash=sha256:" in pin for pin in pins)


@each_lock
def test_the_versions_suit_the_declaration(name: str) -> None:
    """`make locks` was run after the last change of pyproject.toml; nothing that is declared is missing."""
    found = locked(name)
    for text in DECLARED[name]:
        requirement = Requirement(text)
        versions = found[canonicalize_name(requirement.name)]
        assert all(requirement.specifier.contains(version) for version in versions), text


@pytest.mark.parametrize("name", ["core", "spark"])
def test_the_closure_is_locked_and_noticed(name: str) -> None:
    """What is installed here below the declared packages is locked, and the notices have every locked package."""
    found = locked(name)
    noticed = rows()
    assert set(found) <= set(noticed)
    if name == "core":
        assert {package for package in found if noticed[package][1] != "core"} == {"uvloop"}
    assert closure(DECLARED[name]) <= set(found) | {"colorama", "pywin32"}


def build_context(folder: Path) -> Path:
    """What Docker gives the build stage as `.`: the checkout as far as the ignore file admits it."""
    listed = [line[1:] for line in Path(f"{DOCKERFILE}.dockerignore").read_text().splitlines() if line.startswith("!")]
    for name in listed:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        else:
            folder.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_the_image_is_built_as_its_file_says(tmp_path: Path) -> None:
    """The commands of the build stage, with paths replaced: what they install is what is locked, and it runs.

    Without the compiler, which takes minutes; `tests/processes/test_wheel.py` is about what is compiled.
    """
    here = {f"/{name}": str(tmp_path / name) for name in ("opt/build", "opt/lightmq", "wheels", "source")}
    here |= {"/locks": str(LOCKS), "/source": str(build_context(tmp_path / "source"))}
    pattern = re.compile("|".join(rf"(?<!\w){name}(?![\w-])" for name in here))
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"LIGHTMQ_PURE": "1"}
    for command in stages()["build"].all("RUN"):
        if "apt-get" not in command:
            moved = pattern.sub(lambda found: here[found[0]], command).replace("python -m", f"{sys.executable} -m")
            done = subprocess.run(
                ["sh", "-c", moved], env=bare, cwd=tmp_path, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr[-3_000:]
    python = tmp_path / "opt" / "lightmq" / "bin" / "python"
    listed = [python, "-m", "pip", "list", "--format", "json"]
    packages = json.loads(subprocess.run(listed, env=bare, capture_output=True, check=True).stdout)
    versions = {canonicalize_name(one["name"]): one["version"] for one in packages}
    assert versions.pop("lightmq") == PROJECT["project"]["version"]
    known = locked("core")
    assert all(versions[name] in known[name] for name in set(versions) - {"pip", "setuptools"})
    said = subprocess.run(
        [python.with_name("lightmq"), "--version"], env=bare, cwd=tmp_path, capture_output=True, check=True
    )
    assert said.stdout.decode().strip() == f"lightmq {PROJECT['project']['version']}"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_bill_of_materials_lists_what_is_locked(tmp_path: Path) -> None:
    """The published tool finds every package in an environment of the lock file; the console's files are added."""
    command = [sys.executable, str(ROOT / "tools" / "sbom.py"), "--out", str(tmp_path)]
    subprocess.run(command, check=True, timeout=800)
    (path,) = tmp_path.glob("lightmq-*-core.cdx.json")
    document = json.loads(path.read_text())
    assert (document["bomFormat"], document["metadata"]["component"]["name"]) == ("CycloneDX", "lightmq")
    components = {canonicalize_name(one["name"]): one for one in document["components"]}
    assert {"htm", "uplot"} < set(components)
    python = {name: one for name, one in components.items() if one["purl"].startswith("pkg:pypi/")}
    known = locked("core")
    assert all(one["version"] in known[name] for name, one in python.items())
    assert set(known) - set(python) <= {"typing-extensions", "uvloop"}, "not on this Python"
    assert all(one["licenses"] for one in components.values())
