"""Build a Debian package: the wheel and its locked packages in /opt/lightmq, units, configuration, user.

    python3 tools/deb.py [--wheel FILE] [--out dist]

/opt/lightmq is a virtual environment of the system's own Python, so the package is for the release of Debian or Ubuntu
that it was built on; without `--wheel` the wheel is built first, by tools/wheels.py. What goes in is deploy/debian,
deploy/systemd and what deploy/locks/core.txt names, whose hashes are checked. Invariant: a machine that installs it
compiles nothing and downloads nothing. Standard library only; needs dpkg-deb and /usr/bin/python3 from 3.11 to 3.13.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

import bootstrap
import wheels

SYSTEM_PYTHON = Path("/usr/bin/python3")
ENVIRONMENT = "opt/lightmq"
SCRIPTS = ("postinst", "prerm", "postrm")
CONFFILES = ("/etc/lightmq/lightmq.toml",)
STARTER = """\
#!/opt/lightmq/bin/python
import sys

from lightmq.__main__ import main

sys.exit(main())
"""
CONTROL = """\
Package: lightmq
Version: {version}
Architecture: {architecture}
Maintainer: The LightMQ developers <developers@lightmq.invalid>
Section: net
Priority: optional
Installed-Size: {size_kb}
Depends: python3 (>= {python}~), python3 (<< {beyond}~), adduser, init-system-helpers (>= 1.51)
Description: {summary}
 Broker with one commit log and millions of light queues, MQTT 3.1.1 and 5 proxy,
 controller, web console and command line. The unit lightmq runs all of them in one
 process, on loopback until /etc/lightmq/lightmq.toml says otherwise.
"""
COPYRIGHT = """\
LightMQ is under the Apache License 2.0, see /usr/share/common-licenses/Apache-2.0.
The packages in /opt/lightmq are under the licences in THIRD_PARTY_NOTICES.md, whose texts lie beside them.
"""


class NotBuilt(Exception):
    """The package was not built; the text says why."""


def run(*command: str | Path) -> str:
    """Run a command and return its output; if it fails, its output is the reason."""
    variables = {**bootstrap.uv_environment(), "SOURCE_DATE_EPOCH": os.environ.get("SOURCE_DATE_EPOCH", "0")}
    done = bootstrap.run(command, cwd=bootstrap.ROOT, env=variables)
    if done.returncode:
        raise NotBuilt((done.stderr or done.stdout).strip()[-2_000:])
    return str(done.stdout).strip()


def system_version() -> tuple[int, int]:
    """Version of the system's Python. Raises NotBuilt for one that LightMQ does not run on."""
    said = run(SYSTEM_PYTHON, "-c", "import sys; print(*sys.version_info[:2])")
    major, minor = map(int, said.split())
    if not bootstrap.PYTHON_MINIMUM <= (major, minor) < bootstrap.PYTHON_BEYOND:
        raise NotBuilt(f"{SYSTEM_PYTHON} is Python {major}.{minor}: LightMQ needs 3.11 to 3.13")
    return major, minor


def strip(packages: Path) -> None:
    """Take symbols and debugging information out of the extensions: 20 MB in the wheels of others."""
    if shutil.which("strip") is None:
        print("strip is not there (Debian: binutils): the package is larger than it has to be", file=sys.stderr)
        return
    run("strip", "--strip-unneeded", *sorted(packages.rglob("*.so")))


def make_environment(uv: str, stage: Path, wheel: Path, python: str) -> None:
    """Fill /opt/lightmq: what `python3 -m venv` would make, without a path of this machine in it."""
    home = stage / ENVIRONMENT
    packages = home / "lib" / f"python{python}" / "site-packages"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "python").symlink_to(f"/usr/bin/python{python}")
    (home / "pyvenv.cfg").write_text(f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {python}\n")
    into = [
        uv,
        "pip",
        "install",
        "--quiet",
        "--python",
        SYSTEM_PYTHON,
        "--target",
        packages,
        "--no-deps",
        "--link-mode",
        "copy",
    ]
    run(*into, "--require-hashes", "--requirement", bootstrap.ROOT / "deploy" / "locks" / "core.txt")
    run(*into, wheel)
    shutil.rmtree(packages / "bin", ignore_errors=True)
    strip(packages)
    starter = home / "bin" / "lightmq"
    starter.write_text(STARTER)
    starter.chmod(0o755)
    # Its user may not write beside the sources, so what Python would keep there is made now.
    compiling = ["-m", "compileall", "-q", "-s", stage, "-p", "/", "--invalidation-mode", "unchecked-hash", packages]
    run(SYSTEM_PYTHON, *compiling)
    link = stage / "usr" / "bin" / "lightmq"
    link.parent.mkdir(parents=True)
    link.symlink_to("/opt/lightmq/bin/lightmq")


def copy_files(stage: Path) -> None:
    """Units, configuration and documents."""
    deploy = bootstrap.ROOT / "deploy"
    places = {
        "usr/lib/systemd/system": sorted((deploy / "systemd").glob("*.service")),
        "etc/lightmq": [deploy / "debian" / "lightmq.toml"],
        "usr/share/doc/lightmq": [bootstrap.ROOT / "THIRD_PARTY_NOTICES.md"],
    }
    for place, files in places.items():
        (stage / place).mkdir(parents=True)
        for file in files:
            shutil.copyfile(file, stage / place / file.name)
    (stage / "usr/share/doc/lightmq/copyright").write_text(COPYRIGHT)


def digest(path: Path) -> str:
    """The sum by which dpkg sees that a file has changed."""
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


def describe(stage: Path, project: dict[str, str], python: tuple[int, int]) -> Path:
    """Write DEBIAN/ and return the name of the package."""
    files = sorted(path for path in stage.rglob("*") if path.is_file() and not path.is_symlink())
    folder = stage / "DEBIAN"
    folder.mkdir()
    sums = [f"{digest(path)}  {path.relative_to(stage)}" for path in files]
    (folder / "md5sums").write_text("\n".join(sums) + "\n")
    (folder / "conffiles").write_text("\n".join(CONFFILES) + "\n")
    architecture = run("dpkg", "--print-architecture")
    (folder / "control").write_text(
        CONTROL.format(
            version=project["version"], architecture=architecture, summary=project["description"],
            size_kb=sum(path.stat().st_size for path in files) // 1024,
            python=f"{python[0]}.{python[1]}", beyond=f"{python[0]}.{python[1] + 1}",
        )
    )  # fmt: skip
    for name in SCRIPTS:
        shutil.copyfile(bootstrap.ROOT / "deploy" / "debian" / name, folder / name)
        (folder / name).chmod(0o755)
    return Path(f"lightmq_{project['version']}_{architecture}.deb")


def build(uv: str, wheel: Path | None, out: Path) -> Path:
    """Build the package and return where it is. Raises NotBuilt."""
    python = system_version()
    version = f"{python[0]}.{python[1]}"
    project = tomllib.loads((bootstrap.ROOT / "pyproject.toml").read_text())["project"]
    with tempfile.TemporaryDirectory(prefix="lightmq-deb-") as scratch:
        stage = Path(scratch) / "stage"
        stage.mkdir(mode=0o755)
        make_environment(uv, stage, wheel or wheels.build(uv, version, out), version)
        copy_files(stage)
        package = out / describe(stage, project, python)
        run("dpkg-deb", "--root-owner-group", "-Zgzip", "--build", stage, package)
    return package


def main(arguments: Sequence[str] | None = None) -> int:
    """Build it; 1 when that is not possible here."""
    parser = argparse.ArgumentParser(description="build a Debian package")
    parser.add_argument("--wheel", type=Path, help="a wheel for the system's Python; default: it is built")
    parser.add_argument("--out", type=Path, default=bootstrap.ROOT / "dist")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    os.umask(0o022)
    bootstrap.make_environment()
    uv, *_ = bootstrap.uv_command() or [""]
    try:
        if not uv:
            raise NotBuilt("uv could not be installed; see the network")
        print(build(uv, options.wheel, options.out.resolve()))
    except (NotBuilt, wheels.NotBuilt, OSError) as failure:
        print(f"the package was not built: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
