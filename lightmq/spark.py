"""`session()`: a SparkSession with nothing to configure, tuned for streams; `register_topics()`: a view of every topic;
`trace_rows()`: spans of rows; `report_queries()`: the session's queries in the console.

It chooses a Java, makes workers use this very Python, works around a host name that does not resolve, and sets what was
measured to matter, each with its reason in `SETTINGS`. On a cluster (`spark://`, `yarn`, `k8s://`) it leaves the
cluster's choices alone; for Spark Connect (`sc://`) it needs no Java and sets only what a client may. Every setting can
be overridden, by `conf` and by a builder of your own. `python -m lightmq.spark [MASTER]` prints the settings as a
`spark-defaults.conf`.

    for name in register_topics(spark, nameServer="127.0.0.1:9876"):
        spark.sql(f"SELECT count(*) FROM `{name}`").show()

Views belong to the session and keep all options, secrets too; a catalog table (`CREATE TABLE … USING rocketmq`) stays
when the session ends.
Invariant: the connector works in any session, without these settings; views are made of all requested topics or of
none. Thread rule: call from the main thread, before another session exists.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lightmq.extras import install_command
from lightmq.spark_session import choose_java, ensure_java, run_forever, worker_python
from remoting.protocol.errors import LightMQError, LocalMisuse
from spark_connector.row_spans import trace_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from remoting.client.tls import ClientTls
    from spark_connector.listener import RocketMQProgressListener


TOPICS_MAX = 200
"""Topics registered at once; each takes Spark about half a second, because a Python process provides the columns."""


def register_topics(
    spark: SparkSession,
    pattern: str = ".*",
    *,
    streaming: bool = False,
    topics_max: int = TOPICS_MAX,
    **options: object,
) -> list[str]:
    """Make a temporary view of every topic whose whole name matches `pattern`; returns their names, sorted.

    `options` are those of `spark.read` (`spark.readStream` with `streaming`), all but what to read. Raises LocalMisuse
    when there are more topics than `topics_max` or an option selects what to read, OptionError for other wrong options.
    """
    from spark_connector.options.read_write import parse_read
    from spark_connector.reading.bounds import BoundsWatch
    from spark_connector.reading.selection import select

    wrong = [name for name in options if name.lower() in {"topic", "topicpattern", "assign", "mqttfilter", "subscribe"}]
    if wrong:
        raise LocalMisuse(f"the option {wrong[0]!r} is not for register_topics: `pattern` chooses the topics.")
    given = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    parsed = parse_read({**given, "topicPattern": pattern})
    names = sorted({key.topic for key in BoundsWatch(parsed, select(parsed)).read()})
    if len(names) > topics_max:
        raise LocalMisuse(
            f"{len(names)} topics match {pattern!r}, at most {topics_max} are registered: narrow `pattern`."
        )
    frames = []
    for name in names:
        reader = (spark.readStream if streaming else spark.read).format("rocketmq")
        frames.append(reader.options(**given).option("topic", name).load())
    for name, frame in zip(names, frames, strict=True):
        frame.createOrReplaceTempView(name if re.fullmatch(r"[A-Za-z_]\w*", name) else f"`{name}`")
    return names


def report_queries(
    spark: SparkSession,
    name_server: str,
    *,
    broker_name: str = "",
    access_key: str = "",
    secret_key: str = "",
    tls: ClientTls | None = None,
) -> RocketMQProgressListener:
    """Report every streaming query of the session to a broker, for the console's view of Spark and `lightmq spark`.

    `name_server` is the option of the same name: `host:port`, several with commas. A key needs the right to read the
    topics of the queries. Returns the listener, whose `serve` is a page for Prometheus. Raises ValueError for a
    malformed address; a broker that is away changes nothing for the queries.
    """
    from spark_connector.listener import RocketMQProgressListener

    listener = RocketMQProgressListener()
    listener.report(name_server, broker_name=broker_name, access_key=access_key, secret_key=secret_key, tls=tls)
    spark.streams.addListener(listener)
    return listener


__all__ = [
    "defaults",
    "prepare_environment",
    "register_topics",
    "render_defaults",
    "report_queries",
    "require_pyspark",
    "run_forever",
    "session",
    "trace_rows",
]

CORES_FOR_SERIAL_COLLECTOR_MAX = 2
"""Up to here the serial garbage collector beats the parallel ones in latency."""
CHECKPOINT_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
STATE_STORE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
CONNECT_SCHEME = "sc://"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a session and what it is good for."""

    key: str
    value: str
    why: str


SQL_SETTINGS = (
    Setting(
        "spark.sql.python.filterPushdown.enabled",
        "true",
        "Filters of batch reads go to the broker, so that unwanted rows never leave it; Spark's default is off.",
    ),
    Setting(
        "spark.sql.streaming.stateStore.providerClass",
        STATE_STORE,
        "State on disk instead of the heap: it may be larger than memory, and transformWithState needs it.",
    ),
    Setting(
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled",
        "true",
        "Each batch writes what changed instead of whole files: 107 instead of 141 ms for a small aggregate.",
    ),
    Setting("spark.sql.session.timeZone", "UTC", "Times of messages look the same on every machine."),
)
"""For every session, Spark Connect among them."""
QUIET = Setting("spark.ui.showConsoleProgress", "false", "A bar for each of ten batches a second hides everything.")
LOCAL_SETTINGS = (
    Setting(
        "spark.python.unix.domain.socket.enabled",
        "true",
        "Between JVM and workers TCP waits 40 ms for a delayed acknowledgement per task: p50 233 to 151 ms.",
    ),
    Setting(
        "spark.sql.streaming.checkpointFileManagerClass",
        CHECKPOINT_MANAGER,
        "For a local checkpoint the default forks 20 processes per batch: logging it takes 46 instead of 113 ms.",
    ),
    Setting(
        "spark.python.daemon.module",
        "lightmq.spark_daemon",
        "Spark's own prints a BrokenPipeError when `limit`, `take` or `show` has enough before its tasks end.",
    ),
    Setting("spark.ui.enabled", "false", "A web server for a session of one machine costs start-up and a port."),
    Setting(
        "spark.driver.host",
        "127.0.0.1",
        "Spark takes what the host name resolves to, and fails where that is nothing or moves away with a VPN.",
    ),
)
"""For sessions on this machine alone; a cluster has its own."""


def session(
    app_name: str = "lightmq",
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    builder: SparkSession.Builder | None = None,
) -> SparkSession:
    """Return a session (the running one, if there is one).

    `master` is any of Spark's (default `$MASTER`, else `local[*]`) or `sc://host:port` for Spark Connect. `conf` wins
    over every setting made here, and so does what `builder`, your own, already has. Raises PySparkMissing or
    lightmq.spark_session.JavaNotFound, each with the command that mends it.
    """
    require_pyspark()
    wanted = master or os.environ.get("MASTER") or "local[*]"
    is_connect = wanted.startswith(CONNECT_SCHEME)
    java_major = 0
    if not is_connect:
        java_major = ensure_java().major
        prepare_environment(wanted)
    from pyspark.sql import SparkSession

    made = SparkSession.Builder() if builder is None else builder
    chosen = dict(getattr(made, "_options", {}))
    for setting in settings(wanted, java_major):
        if setting.key not in chosen:
            made = made.config(setting.key, setting.value)
    for key, value in (conf or {}).items():
        made = made.config(key, value)
    if is_connect:
        return made.remote(wanted).getOrCreate()
    if "spark.app.name" not in chosen:
        made = made.appName(app_name)
    if "spark.master" not in chosen or master is not None:
        made = made.master(wanted)
    return made.getOrCreate()


class PySparkMissing(LightMQError, ImportError):
    """PySpark is not installed; the text has the command that installs it."""


def require_pyspark(module: str = "pyspark") -> None:
    """Raises PySparkMissing when there is none: it is an extra, because brokers and proxies do without."""
    if importlib.util.find_spec(module) is None:
        raise PySparkMissing(f"{module} is not installed; install it with: {install_command('spark')}")


def prepare_environment(master: str) -> None:
    """Set what Spark's launcher and workers read from the environment, where the user has not."""
    is_here = local_cores(master) is not None
    # Spark's default is whatever `python3` is on the worker's PATH, which seldom has the connector.
    program = worker_python() if is_here else sys.executable
    os.environ.setdefault("PYSPARK_PYTHON", program)
    if is_here:
        # Spark binds to what the host name means and fails where that is nothing, or moves away with a VPN.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Not for a driver, which this process is: the processes of sources and sinks are started with this one.
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", program)
    root = str(Path(__file__).resolve().parent.parent)
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if root not in paths:
        # Workers started from another folder must find the connector also when it runs from a checkout.
        os.environ["PYTHONPATH"] = os.pathsep.join([root, *filter(None, paths)])


def local_cores(master: str) -> int | None:
    """Cores of a `local[...]` master, None for a cluster."""
    found = re.fullmatch(r"local(?:\[(\*|\d+)(?:,\s*\d+)?\])?", master)
    if found is None:
        return None
    wanted = found.group(1)
    if wanted == "*":
        return os.cpu_count() or 1
    return int(wanted or 1)


def settings(master: str, java_major: int) -> tuple[Setting, ...]:
    """Return the settings for a master; a cluster keeps its own memory, collector, checkpoint and network choices."""
    if master.startswith(CONNECT_SCHEME):
        return SQL_SETTINGS
    cores = local_cores(master)
    if cores is None:
        return (*SQL_SETTINGS, QUIET)
    why = "Each partition of a shuffle costs some 10 ms per batch; 200, Spark's default, make a trivial one take 2.6 s."
    partitions = Setting("spark.sql.shuffle.partitions", str(cores), why)
    return (*SQL_SETTINGS, QUIET, *LOCAL_SETTINGS, partitions, _java_options(cores, java_major))


def _java_options(cores: int, java_major: int) -> Setting:
    options, reasons = ["-Djava.net.preferIPv6Addresses=false"], ["The driver listens where the workers look."]
    if cores <= CORES_FOR_SERIAL_COLLECTOR_MAX:
        options.append("-XX:+UseSerialGC")
        reasons.append("On one or two cores the serial collector has the shorter latency: p50 67 instead of 71 ms.")
    if java_major >= 24:
        options += ["--enable-native-access=ALL-UNNAMED", "--sun-misc-unsafe-memory-access=allow"]
        reasons.append("Newer Java warns about what Spark does otherwise.")
    return Setting("spark.driver.extraJavaOptions", " ".join(options), " ".join(reasons))


def defaults(master: str, java_major: int) -> dict[str, str]:
    """The same as a dictionary, for a session of your own."""
    return {setting.key: setting.value for setting in settings(master, java_major)}


def render_defaults(master: str) -> str:
    """Return the text of a `spark-defaults.conf` with the reasons as comments."""
    major = 0 if master.startswith(CONNECT_SCHEME) else choose_java().major
    return "".join(f"# {setting.why}\n{setting.key} {setting.value}\n" for setting in settings(master, major))


if __name__ == "__main__":
    sys.stdout.write(render_defaults((sys.argv[1:] or ["local[*]"])[0]))
