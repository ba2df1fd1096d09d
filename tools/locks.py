"""Write the lock files in deploy/locks: every package of the images with its version and the hashes of its files.

    python3 tools/locks.py [--upgrade]

`core.txt` is what the package needs and uvloop, `spark.txt` adds the extras of the image with Spark, `build.txt` what
builds the wheel. Each holds for all supported Pythons and platforms. Versions stay as they are as long as they suit
pyproject.toml; `--upgrade` takes the newest. Invariant: no index and no address is in them, so that they hold with any
mirror. Standard library only.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence

import bootstrap

LOCKS = bootstrap.ROOT / "deploy" / "locks"
OLDEST = "3.11"
EXTRAS: dict[str, tuple[str, ...]] = {"core": ("uvloop",), "spark": ("uvloop", "spark", "jre")}


def sources() -> dict[str, list[str]]:
    """Lock file -> the requirements that it locks."""
    declared = tomllib.loads((bootstrap.ROOT / "pyproject.toml").read_text())
    project = declared["project"]
    optional = project["optional-dependencies"]
    found = {"build": list(declared["build-system"]["requires"])}
    for name, extras in EXTRAS.items():
        found[name] = [*project["dependencies"], *(text for extra in extras for text in optional[extra])]
    return found


def lock(uv: str, name: str, requirements: list[str], *, upgrade: bool) -> None:
    """Write one file. Raises CalledProcessError."""
    out = LOCKS / f"{name}.txt"
    options = ["--universal", "--python-version", OLDEST, "--generate-hashes", "--no-header", "--no-annotate"]
    if upgrade:
        options.append("--upgrade")
    with tempfile.NamedTemporaryFile("w", suffix=".in") as wanted:
        wanted.write("\n".join(requirements) + "\n")
        wanted.flush()
        command = [uv, "pip", "compile", "--quiet", *options, "--output-file", out, wanted.name]
        subprocess.run(
            command, cwd=bootstrap.ROOT, env=bootstrap.uv_environment(), check=True, stdout=subprocess.DEVNULL
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Write all of them."""
    parser = argparse.ArgumentParser(description="lock the packages of the images")
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions instead of keeping them")
    options = parser.parse_args(arguments)
    bootstrap.make_environment()
    uv, *_ = bootstrap.uv_command() or [""]
    if not uv:
        print("uv could not be installed; see the network", file=sys.stderr)
        return 1
    LOCKS.mkdir(exist_ok=True)
    for name, requirements in sources().items():
        lock(uv, name, requirements, upgrade=options.upgrade)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
