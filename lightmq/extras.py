"""The commands that install what an optional part of LightMQ needs.

They name the packages themselves, read from this distribution's metadata, and not `lightmq[extra]`: that form works
only where a package index has LightMQ, while its requirements can be installed wherever it runs.
Invariant: a command can be pasted into a POSIX shell and installs into the interpreter that printed it. Thread rule:
any thread.
"""

from __future__ import annotations

import shlex
import sys
from importlib.metadata import PackageNotFoundError, requires

DISTRIBUTION = "lightmq"


def pip_install(*requirements: str) -> str:
    """Return the command that installs these requirements (PEP 508 strings) for this interpreter."""
    return shlex.join([sys.executable, "-m", "pip", "install", *requirements])


def install_command(extra: str) -> str:
    """Return the command that installs the requirements of an extra, for example `spark`."""
    return pip_install(*requirements_of(extra))


def requirements_of(extra: str) -> list[str]:
    """Return what the extra requires; the extra's own form where LightMQ runs without being installed."""
    try:
        declared = requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        declared = []
    found = []
    for line in declared:
        requirement, _, marker = line.partition(";")
        if marker.replace('"', "'").replace(" ", "") == f"extra=='{extra}'":
            found.append(requirement.strip())
    return found or [f".[{extra}]"]
