"""RocketMQ's own Java client as the load, against `lightmq up` and RocketMQ's broker: the server's CPU per message.

Each server is started for one round on free ports and stopped after it, in turn; ratios are taken within one round. The
load (`benchmarks/java/ClientLoad.java`) writes messages as users do: with a key, a tag, a user property and the
client's own unique key. The lines of a round:

    single, batches     plain sends from 16 threads, batches of 32 from 4 threads
    push consumer       reads all of it from the first offset
    POP                 4 threads pop 32 at a time and acknowledge each message, or the 32 in one request
    light queues        plain sends from 16 threads to ten light queues and their topic
    schedule            plain sends from 16 threads that are due in a day, `--pending` of them, and the work behind them
    deliver             a quarter of `--messages` that become due within two seconds, while those are pending

Before each line but the last two the same runs unmeasured, so that a JVM has compiled what it needs; `schedule` runs
with a tenth of its messages. Printed are CPU per message of the server's process (RocketMQ's name server is idle and
not counted), the best and the median of the rounds, and the ratio of the best ones.

Needs Java 17 and Maven; the jars are kept in the user's cache. The work is bounded by numbers of messages.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.maven import compiled, jars, running
from benchmarks.mqtt_servers import READY_TIMEOUT_S, free_port, wait_listening
from remoting.client.blocking import BlockingConnection
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command

OPENED = (
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
)
"""The internals of Java 17 that RocketMQ's broker accesses."""
TOPIC = "load"
TOPIC_OF_DEFAULTS = "TBW102"
"""The topic registered by every broker that creates topics at their first message."""
BROKER_HEAP, OTHER_HEAP = ("-Xms1g", "-Xmx1g"), ("-Xms256m", "-Xmx512m")
PEERS = {"rocketmq sync": "SYNC_FLUSH", "rocketmq async": "ASYNC_FLUSH"}
OURS = {"lightmq sync": "sync", "lightmq async": "async"}


LIGHT_QUEUES = ("enableLmq=true", "enableMultiDispatch=true")
"""RocketMQ's broker does not write to light queues without these."""
DAY_S = 86_400
DUE_S = 30
"""Seconds until messages that are waited for are due: enough to send them before."""
IDLE = 0.15
"""The share of a core that a server uses at most when it has no work left (an idle JVM: 0.08)."""


@dataclass(frozen=True, slots=True)
class Phase:
    """One line of the table: the client's arguments, for so many messages, after fewer to warm up."""

    name: str
    command: str
    share: int = 1
    """The number of messages is divided by this, for more expensive work."""


PHASES = (
    Phase("16 threads, single", "send 16 1", 4),
    Phase("4 threads, batches of 32", "send 4 32"),
    Phase("push consumer", "push"),
    Phase("POP of 32, each acknowledged", "pop 4 each", 2),
    Phase("POP of 32, acknowledged together", "pop 4 batch", 2),
    Phase("16 threads, ten light queues", "light 16", 4),
    Phase("timers, schedule", f"delay 16 {DAY_S}"),
    Phase("timers, deliver", "delivered", 4),
)
Figures = dict[str, tuple[float, float]]
"""Name of a phase: (CPU of the server in µs a message, messages a second)."""


def java(folder: Path, classes: Path, heap: Sequence[str], main: str, *arguments: str) -> list[str]:
    """The command that runs a class; RocketMQ's logs go below `classes`."""
    return [
        "java", *heap, *OPENED, f"-Duser.home={classes}", f"-Drocketmq.home.dir={classes}",
        "-cp", f"{classes}:{folder}/*", main, *arguments,
    ]  # fmt: skip


@contextmanager
def lightmq(flush: str, scratch: Path) -> Iterator[tuple[str, int]]:
    """`lightmq up`; (address of its name server, process id)."""
    command = [sys.executable, "-m", "lightmq", "up", "--json", "--data", str(scratch / "data")]
    command += [word for name in ("mqtt", "remoting", "admin") for word in (f"--{name}-port", "0")]
    command += ["--set", f"broker.store.flush={flush}"]
    with running(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        assert child.stdout is not None
        ports = json.loads(child.stdout.readline())
        yield f"127.0.0.1:{ports['remoting']}", child.pid


@contextmanager
def rocketmq(flush: str, scratch: Path, folder: Path, classes: Path, *settings: str) -> Iterator[tuple[str, int]]:
    """RocketMQ's name server and broker, each a process; (address of the name server, process id of the broker).

    `settings`: lines of the broker's configuration.
    """
    address, port = free_port(), free_port()
    (scratch / "namesrv.conf").write_text(f"listenPort={address}\n")
    lines = [f"listenPort={port}", f"haListenPort={free_port()}", f"namesrvAddr=127.0.0.1:{address}"]
    lines += ["brokerIP1=127.0.0.1", "brokerName=peer", "autoCreateTopicEnable=true", f"flushDiskType={flush}"]
    lines += [f"storePathRootDir={scratch}/store", f"storePathCommitLog={scratch}/store/commitlog"]
    (scratch / "broker.conf").write_text("\n".join([*lines, *settings]))
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    start = "org.apache.rocketmq.namesrv.NamesrvStartup", "org.apache.rocketmq.broker.BrokerStartup"
    with ExitStack() as stack:
        name_server = java(folder, classes, OTHER_HEAP, start[0], "-c", str(scratch / "namesrv.conf"))
        stack.enter_context(running(name_server, **quiet))
        wait_listening(address)
        broker = java(folder, classes, BROKER_HEAP, start[1], "-c", str(scratch / "broker.conf"))
        child = stack.enter_context(running(broker, **quiet))
        wait_listening(port)
        wait_registered(address)
        yield f"127.0.0.1:{address}", child.pid


def wait_registered(name_server: int) -> None:
    """Wait until the broker is registered at RocketMQ's name server, some time after it listens."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    connection = BlockingConnection("127.0.0.1", name_server)
    try:
        asked = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields={"topic": TOPIC_OF_DEFAULTS})
        while connection.request(asked).code != ResponseCode.SUCCESS:
            if time.monotonic() > deadline:
                raise TimeoutError("RocketMQ's broker did not register at its name server")
            time.sleep(0.05)
    finally:
        connection.close()


class Load:
    """The Java client, started phase by phase."""

    def __init__(self, child: subprocess.Popen[str], server: int) -> None:
        self._child, self._server = child, psutil.Process(server)
        self._expect("ready")

    def _expect(self, word: str) -> list[str]:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            if line.startswith(word):
                return line.split()
        raise SystemExit(f"the client ended with status {self._child.wait()}")

    def run(self, command: str, *, settled: bool = False) -> tuple[float, float]:
        """(CPU of the server in µs a message, messages a second); `settled`: with what it does after the answers."""
        assert self._child.stdin is not None
        before = self._used()
        self._child.stdin.write(command + "\n")
        self._child.stdin.flush()
        _done, messages, seconds = self._expect("done")
        if settled:
            self.settle()
        return (self._used() - before) / int(messages) * 1e6, int(messages) / float(seconds)

    def _used(self) -> float:
        times = self._server.cpu_times()
        return times.user + times.system

    def settle(self) -> None:
        """Wait until the server has no work left."""
        used = self._used()
        while True:
            time.sleep(1)
            before, used = used, self._used()
            if used - before < IDLE:
                return


def run_phases(load: Load, phases: Sequence[Phase], messages: int, pending: int) -> Figures:
    """The figures of these phases, in their order."""
    figures: Figures = {}
    stored = 0
    for phase in phases:
        count = messages // phase.share
        kind = phase.command.split()[0]
        if kind in ("push", "pop") and stored < count:
            load.run(f"send 4 32 {count}")
            stored += count
        if kind == "push":
            count = stored
        if kind == "delivered":
            load.run(f"delay 16 {DUE_S} {count}", settled=True)
            load.run("wait")
            figures[phase.name] = load.run(phase.command)
            continue
        if kind == "delay":
            load.run(f"{phase.command} {pending // 10}", settled=True)
            figures[phase.name] = load.run(f"{phase.command} {pending}", settled=True)
            continue
        warming = count // 2 if kind == "send" else count
        load.run(f"{phase.command} {warming}")
        figures[phase.name] = load.run(f"{phase.command} {count}")
        stored += warming + count if kind == "send" else 0
    return figures


def measure(name: str, folder: Path, classes: Path, phases: Sequence[Phase], messages: int, pending: int) -> Figures:
    """These phases against one fresh server."""
    with tempfile.TemporaryDirectory(prefix="lightmq-bench-") as made, ExitStack() as stack:
        scratch = Path(made)
        if name in OURS:
            server = lightmq(OURS[name], scratch)
        else:
            server = rocketmq(PEERS[name], scratch, folder, classes, *LIGHT_QUEUES)
        address, pid = stack.enter_context(server)
        command = java(folder, classes, OTHER_HEAP, "ClientLoad", address, TOPIC)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        load = Load(stack.enter_context(running(command, **pipes)), pid)
        return run_phases(load, phases, messages, pending)


def show(rounds: dict[str, list[Figures]], phases: Sequence[Phase]) -> None:
    """The table: one line per phase and server, ours with their ratio to the peer that flushes as they do."""
    for phase in phases:
        print(phase.name)
        best = {name: min(each[phase.name][0] for each in measured) for name, measured in rounds.items()}
        for name, measured in rounds.items():
            costs = [each[phase.name][0] for each in measured]
            rate = max(each[phase.name][1] for each in measured)
            peer = name.replace("lightmq", "rocketmq")
            ratio = f"{best[name] / best[peer]:.2f} of {peer}" if name in OURS and peer in best else ""
            print(
                f"  {name:<16}{min(costs):8.1f} best{statistics.median(costs):8.1f} median us{rate:12,.0f}/s  {ratio}"
            )


def main() -> int:
    """Run the rounds and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=320_000, help="messages of a line; single sends: a quarter")
    parser.add_argument("--pending", type=int, default=200_000, help="delayed messages that are pending")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", action="append", default=[], help="part of a server's name; may be repeated")
    parser.add_argument("--line", action="append", default=[], help="part of a line's name; may be repeated")
    options = parser.parse_args()
    folder = jars("rocketmq")
    if folder is None:
        return 0
    names = [name for name in (*OURS, *PEERS) if not options.only or any(part in name for part in options.only)]
    phases = [each for each in PHASES if not options.line or any(part in each.name for part in options.line)]
    rounds: dict[str, list[Figures]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as made:
        classes = Path(made)
        compiled("ClientLoad", folder, classes)
        for _ in range(options.rounds):
            for name in names:
                rounds[name].append(measure(name, folder, classes, phases, options.messages, options.pending))
    show(rounds, phases)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
