"""Jars of the peers that benchmarks run beside LightMQ: fetched by Maven at first use, kept in the user's cache.

A project file below `java/` lists what is fetched and names the folder. Invariant: a folder is used only when its
download was completed (the file `complete`). None of it is part of the product.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

SOURCES = Path(__file__).with_name("java")
STOP_TIMEOUT_S = 30


def jars(name: str) -> Path | None:
    """The folder of the jars listed in `java/NAME.xml`; if there are none, prints the reason and returns None."""
    missing = [program for program in ("java", "javac", "mvn") if shutil.which(program) is None]
    if missing:
        print(f"not installed: {', '.join(missing)}")
        return None
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "lightmq" / "benchmarks" / name
    if not (folder / "complete").exists():
        command = ["mvn", "-B", "-q", "-f", str(SOURCES / f"{name}.xml"), "dependency:copy-dependencies"]
        command.append(f"-DoutputDirectory={folder}")
        fetched = subprocess.run(command, capture_output=True, text=True, check=False)
        if fetched.returncode:
            print(f"Maven could not fetch the jars of {name}: {fetched.stdout[-300:]}")
            return None
        (folder / "complete").touch()
    return folder


def compiled(program: str, folder: Path, classes: Path) -> None:
    """Compile `java/PROGRAM.java` against these jars into `classes`."""
    command = ["javac", "-nowarn", "-cp", f"{folder}/*", "-d", str(classes), str(SOURCES / f"{program}.java")]
    subprocess.run(command, check=True)


@contextmanager
def running(command: Sequence[str], **keywords: object) -> Iterator[subprocess.Popen[str]]:
    """A process that is ended with the block."""
    child: subprocess.Popen[str] = subprocess.Popen(command, text=True, **keywords)  # type: ignore[call-overload]
    try:
        yield child
    finally:
        child.terminate()
        try:
            child.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
