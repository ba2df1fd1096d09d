"""RocketMQ's clients in other languages than Java, each fetched or built at first use into the user's cache.

A test is skipped with a message that names what is missing: Go, Node.js with npm, or the package registries.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FETCH_TIMEOUT_S = 400
ALI_ONS = ("ali-ons@3.12.0", "urllib@2.44.1")
CPP = "rocketmq==0.4.4"


def _cache(name: str) -> Path:
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "lightmq" / name


def _fetch(command: Sequence[str], what: str, folder: Path | None = None) -> None:
    done = subprocess.run(
        list(command), capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False, cwd=folder
    )
    if done.returncode != 0:
        pytest.skip(f"{what} cannot be fetched or built: {done.stderr[-300:]}")


def _needs(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


def npm_packages(*packages: str) -> Path:
    """The folder with these packages of npm."""
    _needs("node", "npm")
    folder = _cache("-".join(packages).replace("@", "-"))
    if not (folder / "complete").exists():
        folder.mkdir(parents=True, exist_ok=True)
        options = ["--no-audit", "--no-fund", "--ignore-scripts"]
        _fetch(["npm", "install", "--prefix", str(folder), *options, *packages], " and ".join(packages))
        (folder / "complete").touch()
    return folder


def go_command(server: str) -> list[str]:
    """The program of the client for Go, with this name server."""
    _needs("go")
    sources = [HERE / "go" / name for name in ("main.go", "go.mod", "go.sum")]
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    program = _cache(f"go-features-{digest}") / "features"
    if not program.exists():
        _fetch(["go", "build", "-o", str(program), "."], "the client for Go", HERE / "go")
    return [str(program), server]


def ali_ons_command(server: str) -> list[str]:
    """The program of ali-ons."""
    return ["node", str(HERE / "node" / "ali_ons.js"), str(npm_packages(*ALI_ONS)), server]


def cpp_command(server: str, program: str = "cpp_features.py") -> list[str]:
    """A program of the C++ client's Python package, in an environment of its own."""
    folder = _cache(f"{CPP.replace('==', '-')}-{sys.version_info.major}.{sys.version_info.minor}")
    if not (folder / "complete").exists():
        _fetch([sys.executable, "-m", "venv", str(folder)], "an environment")
        _fetch([str(folder / "bin" / "pip"), "install", "-q", CPP], CPP)
        (folder / "complete").touch()
    return [str(folder / "bin" / "python"), str(HERE / program), server]
