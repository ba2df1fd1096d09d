"""The compilation of the core beside a first run, at the lowest priority: the next start uses what it makes.

`demo.py` asks for it by LIGHTMQ_DEMO_COMPILES, the path of the script that installs. Invariant: the script puts its
extensions in place when all of them are built; interrupted, it leaves none. Thread rule: main thread.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

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
