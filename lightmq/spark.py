"""`session()`: a SparkSession with nothing to configure, tuned for streams on one machine.

It chooses a Java, makes workers use this very Python, keeps Spark from tripping over the machine's host name, and sets
what was measured to matter: Unix sockets to the workers, a checkpoint manager that forks no processes, RocksDB state,
few shuffle partitions. Every setting can be overridden. Invariant: nothing here is needed for correctness; the
connector works in any session. Thread rule: call from the main thread, before another session exists.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from lightmq.jvm import ensure_java
from remoting.protocol.errors import LightMQError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CORES_FOR_SERIAL_COLLECTOR_MAX = 2
"""Up to here the serial garbage collector beats the parallel ones in latency."""
CHECKPOINT_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
STATE_STORE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def session(
    app_name: str = "lightmq", *, master: str | None = None, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Return a session (the running one, if there is one); `conf` wins over every setting made here.

    Raises PySparkMissing or lightmq.jvm.JavaNotFound, each with the command that mends it.
    """
    require_pyspark()
    java = ensure_java()
    wanted = master or os.environ.get("MASTER") or "local[*]"
    prepare_environment(wanted)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app_name).master(wanted)
    for key, value in (defaults(wanted, java.major) | dict(conf or {})).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


class PySparkMissing(LightMQError, ImportError):
    """PySpark is not installed; the text has the command that installs it."""


def require_pyspark(module: str = "pyspark") -> None:
    """Raises PySparkMissing when there is none: it is an extra, because brokers and proxies do without."""
    if importlib.util.find_spec(module) is None:
        raise PySparkMissing(
            f"{module} is not installed; install it with: {shlex.quote(sys.executable)} -m pip install 'lightmq[spark]'"
        )


def prepare_environment(master: str) -> None:
    """Set what Spark's launcher and workers read from the environment, where the user has not."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    root = str(Path(__file__).resolve().parent.parent)
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if root not in paths:
        # Workers started from another folder must find the connector also when it runs from a checkout.
        os.environ["PYTHONPATH"] = os.pathsep.join([root, *filter(None, paths)])
    if local_cores(master) is not None:
        # Spark binds to what the host name means and fails where that is nothing, or moves away with a VPN.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def local_cores(master: str) -> int | None:
    """Cores of a `local[...]` master, None for a cluster."""
    found = re.fullmatch(r"local(?:\[(\*|\d+)(?:,\s*\d+)?\])?", master)
    if found is None:
        return None
    wanted = found.group(1)
    if wanted == "*":
        return os.cpu_count() or 1
    return int(wanted or 1)


def defaults(master: str, java_major: int) -> dict[str, str]:
    """Return the settings for a master; a cluster keeps its own memory, collector and checkpoint choices."""
    settings = {
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.streaming.stateStore.providerClass": STATE_STORE,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
    }
    cores = local_cores(master)
    if cores is None:
        return settings
    options = ["-Djava.net.preferIPv6Addresses=false"]
    if cores <= CORES_FOR_SERIAL_COLLECTOR_MAX:
        options.append("-XX:+UseSerialGC")
    if java_major >= 24:
        options += ["--enable-native-access=ALL-UNNAMED", "--sun-misc-unsafe-memory-access=allow"]
    return settings | {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_MANAGER,
        "spark.sql.shuffle.partitions": str(cores),
        "spark.driver.extraJavaOptions": " ".join(options),
        "spark.ui.enabled": "false",
    }
