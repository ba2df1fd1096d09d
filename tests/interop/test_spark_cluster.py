"""Source and sink on a real standalone cluster and through Spark Connect, with nothing registered anywhere."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.interop.spark_cluster import ROOT, Cluster
from tests.interop.spark_scenario import Publish

pytestmark = [pytest.mark.spark, pytest.mark.processes, pytest.mark.timeout(300)]
ROWS = 2_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One master and two workers."""
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        made.start(workers=2)
        yield made
    finally:
        made.stop()


class Driver:
    """The driver of spark_cluster_driver.py."""

    def __init__(self, cluster: Cluster, url: str, server: str, topic: str) -> None:
        self._log = cluster.folder / f"driver-{topic}.log"
        checkpoint = str(cluster.folder / f"checkpoint-{topic}")
        command = [sys.executable, "-m", "tests.interop.spark_cluster_driver", url, server, topic, checkpoint]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=cluster.environment,
                cwd=ROOT,
            )

    def hear(self, event: str) -> dict[str, Any]:
        """Its next JSON line."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self._log.read_text()[-4_000:]
        said: dict[str, Any] = json.loads(line)
        assert said["event"] == event
        return said

    def drain(self) -> None:
        """Let it catch up."""
        assert self.process.stdin is not None
        self.process.stdin.write("drain\n")
        self.process.stdin.flush()
        self.hear("drained")

    def finish(self) -> dict[str, Any]:
        """End its input; the result of its last reads."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        found = self.hear("read")
        assert self.process.wait(60) == 0
        return found

    def kill(self) -> None:
        """Clean up, whether the test passed or failed."""
        self.process.kill()
        self.process.wait()


@pytest.mark.parametrize("kind", ["standalone", "connect"])
def test_source_and_sink_over_two_executors(cluster: Cluster, publish: Publish, server: str, kind: str) -> None:
    """Rows published before and while the query runs arrive exactly once; both executors read."""
    publish(f"{kind}/1", range(ROWS))
    url = cluster.url if kind == "standalone" else cluster.start_connect()
    driver = Driver(cluster, url, server, kind)
    try:
        driver.hear("ready")
        publish(f"{kind}/2", range(ROWS, 2 * ROWS))
        driver.drain()
        found = driver.finish()
    finally:
        driver.kill()
        if kind == "connect":
            cluster.kill("connect")
    assert (found["rows"], found["distinct"]) == (2 * ROWS, 2 * ROWS)
    assert len(found["places"]) == 2, found["places"]
