"""RocketMQ's name server and broker as processes, on free ports, with names as those of `lightmq up`."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from remoting.client.blocking import BlockingConnection
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.failures import Unreachable
from tests.interop.rocketmq_java import OPENED
from tests.support.ports import free_port

START_TIMEOUT_S = 120
BROKER = """
brokerClusterName=DefaultCluster
brokerName=broker-a
brokerIP1=127.0.0.1
autoCreateTopicEnable=true
flushDiskType=SYNC_FLUSH
mappedFileSizeCommitLog=16777216
recallMessageEnable=true
enablePropertyFilter=true
"""
"""What our broker offers by default is switched on there too."""


@contextmanager
def rocketmq_servers(jars: Path, folder: Path) -> Iterator[tuple[int, int]]:
    """Ports of the broker and of the name server."""
    with ExitStack() as stack:

        def start(name: str, main: str, lines: list[str]) -> None:
            home = folder / name
            home.mkdir(parents=True)
            (home / "server.conf").write_text("\n".join(lines))
            command = ["java", "-Xms256m", "-Xmx512m", *OPENED, f"-Duser.home={home}", f"-Drocketmq.home.dir={home}"]
            command += ["-cp", f"{jars}/*", main, "-c", str(home / "server.conf")]
            with (home / "output").open("w") as output:
                child = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
            stack.callback(child.wait)
            stack.callback(child.kill)

        names, broker = free_port(), free_port()
        start("namesrv", "org.apache.rocketmq.namesrv.NamesrvStartup", [f"listenPort={names}"])
        store = folder / "broker" / "store"
        lines = [BROKER, f"listenPort={broker}", f"haListenPort={free_port()}", f"namesrvAddr=127.0.0.1:{names}"]
        lines += [f"storePathRootDir={store}", f"storePathCommitLog={store}/commitlog"]
        start("broker", "org.apache.rocketmq.broker.BrokerStartup", lines)
        wait_registered(names)
        yield broker, names


def wait_registered(name_server: int) -> None:
    """Wait until the broker's topics can be found at the name server."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while not registered(name_server):
        assert time.monotonic() < deadline, "the broker did not register"
        time.sleep(0.2)


def registered(name_server: int) -> bool:
    """Whether the broker's topics can be found at the name server."""
    asked = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields={"topic": "TBW102"})
    try:
        connection = BlockingConnection("127.0.0.1", name_server)
    except Unreachable:
        return False
    try:
        return connection.request(asked).code == ResponseCode.SUCCESS
    finally:
        connection.close()
