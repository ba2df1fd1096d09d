"""A Spark standalone cluster of processes (one master, two workers with a core each) and a Spark Connect server on it.

Everything runs from PySpark's own jars. Invariant: each process leads its own process group, which `stop` kills as a
whole, executors included.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyspark

from lightmq.spark_session import choose_java
from tests.support.ports import free_port

HOME = Path(pyspark.__file__).parent
ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 60.0
QUICK_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
EXECUTORS = {"spark.executor.memory": "512m", "spark.executor.extraJavaOptions": QUICK_JVM}


class Cluster:
    """The processes, their logs in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))},
            "JAVA_HOME": str(choose_java().home),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_SUBMIT_OPTS": QUICK_JVM,
        }
        self.url = ""

    def start(self, workers: int, *, apart: bool = False) -> None:
        """Start master and workers and wait until the workers are registered.

        `apart`: each worker has a loopback address of its own, so that Spark treats them as different machines.
        """
        light = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": QUICK_JVM}
        place = ["--host", "127.0.0.1", "--webui-port", "0"]
        master = self._run("master", ["org.apache.spark.deploy.master.Master", *place, "--port", "0"], light)
        self.url = self._wait(master, r"Starting Spark master at (spark://\S+)")
        for number in range(workers):
            room = ["--cores", "1", "--memory", "700m", "--work-dir", str(self.folder / f"worker-{number}")]
            name = f"worker-{number}"
            here = ["--host", f"127.0.0.{number + 2}", *place[2:]] if apart else place
            self._run(name, ["org.apache.spark.deploy.worker.Worker", *here, *room, self.url], light)
        for number in range(workers):
            self._wait(f"worker-{number}", "Successfully registered with master")

    def start_connect(self) -> str:
        """Start a Spark Connect server whose executors are the cluster's; its `sc://` address."""
        port = free_port()
        conf = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(port),
            **EXECUTORS,
            "spark.ui.enabled": "false",
        }
        settings = [text for key, value in conf.items() for text in ("--conf", f"{key}={value}")]
        server = ["org.apache.spark.deploy.SparkSubmit", "--master", self.url, *settings]
        server += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
        self._run("connect", server, {})
        self._wait("connect", "Spark Connect server started at")
        return f"sc://127.0.0.1:{port}"

    def kill(self, name: str) -> None:
        """kill -9 of one process and its children."""
        process = self._processes[["master", "worker-0", "worker-1", "connect"].index(name)]
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        """End all processes that still run."""
        for process in reversed(self._processes):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _run(self, name: str, command: list[str], more: dict[str, str]) -> str:
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [str(HOME / "bin" / "spark-class"), *command],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment | more,
                cwd=self.folder,
                start_new_session=True,
            )
        self._processes.append(process)
        return name

    def _wait(self, name: str, pattern: str) -> str:
        """Wait until the pattern is in the log of a process; the match's first group, or the whole match."""
        log, deadline = self.folder / f"{name}.log", time.monotonic() + DEADLINE_S
        while (found := re.search(pattern, log.read_text())) is None:
            assert time.monotonic() < deadline, log.read_text()[-3_000:]
            time.sleep(0.05)
        return found.group(1) if found.groups() else found.group()
