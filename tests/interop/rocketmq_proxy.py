"""RocketMQ's own proxy as a process, in cluster mode, before the brokers of a name server; Maven fetches its jars."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.interop.rocketmq_java import OPENED, VERSION, ClientProcess, fetched
from tests.support.ports import free_port

SOURCES = Path(__file__).with_name("java_proxy")
STARTED = "rocketmq-proxy startup successfully"
START_TIMEOUT_S = 120


@contextmanager
def rocketmq_proxy(folder: Path, name_server: str, cluster: str = "DefaultCluster") -> Iterator[tuple[int, int]]:
    """Ports for gRPC and for remoting clients."""
    jars = fetched(SOURCES, f"rocketmq-proxy-{VERSION}", VERSION)
    grpc, remoting = free_port(), free_port()
    folder.mkdir(parents=True)
    (folder / "proxy.json").write_text(
        json.dumps(
            {
                "rocketMQClusterName": cluster,
                "proxyClusterName": cluster,
                "heartbeatSyncerTopicClusterName": cluster,
                "namesrvAddr": name_server,
                "localServeAddr": "127.0.0.1",
                "grpcServerPort": grpc,
                "remotingListenPort": remoting,
            }
        )
    )
    command = ["java", "-Xms128m", "-Xmx384m", *OPENED, f"-Duser.home={folder}", f"-Drocketmq.home.dir={folder}"]
    command += ["-cp", f"{jars}/*", "org.apache.rocketmq.proxy.ProxyStartup", "-pc", str(folder / "proxy.json")]
    proxy = ClientProcess(command, folder)
    try:
        proxy.wait_for(STARTED, START_TIMEOUT_S)
        yield grpc, remoting
    finally:
        proxy.kill()
