"""Write the software bills of materials (CycloneDX 1.6, JSON) beside the wheels: what an installation consists of.

    python3 tools/sbom.py [--out dist] [--with-spark]

For each lock file of deploy/locks an environment is made from it, with its hashes checked, and cyclonedx-py describes
what it finds there: packages, versions, licences, what needs what. What lies in the wheel as files, listed in
THIRD_PARTY_NOTICES.md, is added. Invariant: a document that CycloneDX's own schema refuses is an error. Standard
library only.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bootstrap

TOOL = "cyclonedx-bom==7.5.0"
NAMES = ("core", "spark")
FILES = re.compile(r"^\| `[^|]*\.js`[^|]*\| ([\w.-]+) (\d+\.\d+\.\d+)[^|]* \| ([\w.-]+)", re.MULTILINE)
"""Rows of the notices' table of the console: name, version, licence."""
CONSOLE = "## Files in the console"


def vendored() -> list[dict[str, Any]]:
    """The console's files as components."""
    text = (bootstrap.ROOT / "THIRD_PARTY_NOTICES.md").read_text().partition(CONSOLE)[2].partition("\n## ")[0]
    return [
        {
            "bom-ref": f"file-{name.lower()}",
            "type": "library",
            "name": name.lower(),
            "version": version,
            "purl": f"pkg:npm/{name.lower()}@{version}",
            "licenses": [{"license": {"id": licence}}],
        }
        for name, version, licence in FILES.findall(text)
    ]


def describe(uv: str, name: str, out: Path) -> Path:
    """Write one document and return where it is. Raises CalledProcessError."""
    version = tomllib.loads((bootstrap.ROOT / "pyproject.toml").read_text())["project"]["version"]
    path = out / f"lightmq-{version}-{name}.cdx.json"
    variables = bootstrap.uv_environment()
    with tempfile.TemporaryDirectory(prefix="lightmq-sbom-") as scratch:
        python = Path(scratch) / "environment" / "bin" / "python"
        lock = bootstrap.ROOT / "deploy" / "locks" / f"{name}.txt"
        for command in (
            ["venv", "--quiet", "--python", sys.executable, python.parent.parent],
            ["pip", "install", "--quiet", "--python", python, "--require-hashes", "--requirement", lock],
            ["tool", "run", "--quiet", "--from", TOOL, "cyclonedx-py", "environment", "--pyproject", "pyproject.toml",
             "--spec-version", "1.6", "--output-reproducible", "--output-file", path, python],
        ):  # fmt: skip
            subprocess.run([uv, *command], cwd=bootstrap.ROOT, env=variables, check=True, stdout=sys.stderr)
    document = json.loads(path.read_text())
    document["components"] += vendored()
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    """Write that of the core, and of the image with Spark if wanted."""
    parser = argparse.ArgumentParser(description="write software bills of materials")
    parser.add_argument("--with-spark", action="store_true", help="that of the image with Spark too (450 MB)")
    parser.add_argument("--out", type=Path, default=bootstrap.ROOT / "dist")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    bootstrap.make_environment()
    uv, *_ = bootstrap.uv_command() or [""]
    if not uv:
        print("uv could not be installed; see the network", file=sys.stderr)
        return 1
    for name in NAMES if options.with_spark else NAMES[:1]:
        try:
            print(describe(uv, name, options.out.resolve()), flush=True)
        except subprocess.CalledProcessError as failure:
            print(f"{name}: not written: {failure}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
