"""The Python that Spark starts its processes with on this machine: this one, with PySpark as it is installed.

Spark puts its own `pyspark.zip` before everything else on their path, and Python keeps no compiled code of a zip: each
process (the source of a stream, every step of planning, the daemon of workers: eight in an ordinary session) compiles
PySpark anew, 0.25 of the 0.8 s of CPU before it connects, for which Spark waits ten seconds and no longer. The very
same PySpark is installed beside us and compiled, so a script leaves the zips out of the path.

Invariant: only where the zips belong to the PySpark that this process imports, from the place where packages are
installed; otherwise it is this Python as it is. Standard library alone.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from lightmq.spark_session.scripts import script

SCRIPT = """#!/bin/sh
# Spark puts PySpark as a zip before the one that is installed, and every process would compile it anew.
kept=
set -f
IFS=:
for each in $PYTHONPATH; do
  case "$each" in
    {zips}) ;;
    *) kept="$kept${{kept:+:}}$each" ;;
  esac
done
PYTHONPATH="$kept"
export PYTHONPATH
exec {python} "$@"
"""


def worker_python(environ: Mapping[str, str] | None = None) -> str:
    """Return the path of the program."""
    package = _installed("pyspark")
    if package is None or _installed("py4j") is None:
        return sys.executable
    home = (os.environ if environ is None else environ).get("SPARK_HOME")
    if home and Path(home).resolve() != package.resolve():
        return sys.executable
    homes = sorted({str(one) for one in (package, package.resolve(), Path(home or package))})
    libs = [shlex.quote(f"{one}/python/lib/") for one in homes]
    zips = " | ".join(f"{lib}{name}" for lib in libs for name in ("pyspark.zip", "py4j-*-src.zip"))
    return str(script("python", SCRIPT.format(zips=zips, python=shlex.quote(sys.executable))))


def _installed(name: str) -> Path | None:
    """The folder of a package, if it is where packages are installed."""
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        return None
    folder = Path(found.origin).parent
    places = {Path(sysconfig.get_path(kind)).resolve() for kind in ("purelib", "platlib")}
    return folder if folder.parent.resolve() in places else None
