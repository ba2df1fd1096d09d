"""Kafka's broker for benchmarks: one node, four partitions a topic, on free ports and in a scratch folder.

It runs with its defaults: `acks=all` on one node, which writes to the page cache and does not flush. It is stopped at
the end of the `with` block.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.maven import running
from benchmarks.mqtt_servers import free_port, wait_listening

CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
HEAP = ("-Xms1g", "-Xmx1g")
PARTITIONS = 4


@contextmanager
def kafka(jars: Path, scratch: Path) -> Iterator[tuple[str, int]]:
    """A broker of its own; (address, process id). Its log is `scratch/log`."""
    port, controller = free_port(), free_port()
    settings = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": scratch / "log",
        "num.partitions": PARTITIONS,
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
    }
    properties = scratch / "kafka.properties"
    properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    java = ["java", *HEAP, "-cp", f"{jars}/*"]
    format_log = [*java, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(properties)]
    subprocess.run(format_log, check=True, capture_output=True)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with running([*java, "kafka.Kafka", str(properties)], **quiet) as child:
        wait_listening(port)
        yield f"127.0.0.1:{port}", child.pid
