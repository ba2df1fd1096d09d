"""Failed and speculative attempts of the sink's tasks on a real cluster: each row is visible exactly once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.spark_attempts import ROWS
from tests.interop.spark_cluster import ROOT, Cluster

pytestmark = [
    pytest.mark.slow,
    pytest.mark.spark,
    pytest.mark.processes,
    pytest.mark.timeout(900),
    pytest.mark.skipif(sys.platform != "linux", reason="each worker has a loopback address of its own"),
]
DEADLINE_S = 800


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Two workers that Spark treats as two machines, because it never runs two attempts of a task on the same one."""
    made = Cluster(tmp_path)
    try:
        made.start(workers=2, apart=True)
        yield made
    finally:
        made.stop()


def test_rows_of_attempts_that_do_not_count_are_never_seen(cluster: Cluster, server: str, tmp_path: Path) -> None:
    """A task that staged all its rows fails and is retried, or is overtaken by a second attempt; batch and stream."""
    command = [sys.executable, "-m", "tests.interop.spark_attempts", cluster.url, server, str(tmp_path)]
    log = tmp_path / "driver.log"
    with log.open("w") as errors:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, timeout=DEADLINE_S, check=False,
            env=cluster.environment, cwd=ROOT,
        )  # fmt: skip
    assert done.returncode == 0, log.read_text()[-6_000:]
    said = json.loads(done.stdout.splitlines()[-1])
    for name, found in said.items():
        assert (found["rows"], found["distinct"]) == (ROWS, ROWS), (name, found)
        twice = Counter(stage for stage, partition, attempt in found["staged"] if (partition, attempt) == ("0", "1"))
        batches = found["batches"] or 1
        assert len(twice) == batches, f"{name}: each batch had a second attempt that staged its rows: {found['staged']}"
    assert said["stream-fails"]["batches"] >= 2
