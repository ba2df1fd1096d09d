"""RocketMQ's gRPC clients against our proxy and RocketMQ's: messages a second, and CPU of proxy and broker per message.

Each side is a broker and a proxy, a process each, and on RocketMQ's a name server, which is idle and not counted. Both
acknowledge what is on disk. They are started for one round on free ports and stopped after it, in turn. The lines:

    single sends            the Java client, 32 threads
    sends of 32             32 messages in one call, 4 calls on their way
    simple consumer         the Java client, 4 threads receive 32 at a time and acknowledge each message
    receives of 32          4 receives on their way, and one acknowledgement of what each brought
    push consumer           the Java client

No client sends 32 messages in a call or acknowledges as many: those lines come from a client on gRPC's C core, which
sends bytes that are made before. Every line runs unmeasured first, so that a JVM has compiled what it needs. Printed
are the best of the rounds and the ratios of ours to RocketMQ's. Bodies of 256 bytes, with a key, a tag and a property.

Needs Java 17 and Maven; the jars are kept in the user's cache. Without them only ours is measured, by the client here.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, perf_counter, sleep
from typing import Any

import grpc.aio
import psutil

from benchmarks.broker_requests import BODY, SENDERS, cpu_s
from benchmarks.maven import compiled, jars, running
from benchmarks.mqtt_servers import free_port, wait_listening
from benchmarks.rocketmq_clients import OTHER_HEAP, java, wait_registered
from grpc_proxy.service import NAME
from grpc_proxy.stubs import definition as d
from grpc_proxy.stubs import service as s
from remoting.client.blocking import BlockingConnection, checked
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from runtime.process import run

BATCH, CALLS = 32, 4
TOPIC, GROUP = "calls", "bench"
START_TIMEOUT_S = 120
QUEUED_MS_MAX = 60_000
"""How long a request may wait in RocketMQ's broker, which refuses a send after 200 ms: a slow disk ends no line."""
METADATA = (("x-mq-client-id", "bench"), ("x-mq-language", "PYTHON"), ("x-mq-client-version", "5.1.2"))
RESOURCE, READERS = d.Resource(name=TOPIC), d.Resource(name=GROUP)
LINES = {
    "single sends": f"send {SENDERS}",
    "sends of 32": "sends",
    "simple consumer": f"simple {CALLS}",
    "receives of 32": "receives",
    "push consumer": "push",
}
"""Name of a line: the Java client's phase without its number of messages, or the work of the client here."""


@dataclass(frozen=True, slots=True)
class Side:
    """Servers that were started."""

    port: int
    proxy: psutil.Process
    broker: psutil.Process


@dataclass(frozen=True, slots=True)
class Figures:
    """What a line cost."""

    rate: float
    proxy_us: float
    broker_us: float


def make_topic(broker_port: int) -> None:
    """Make the topic at a broker."""
    fields = {"topic": TOPIC, "readQueueNums": "4", "writeQueueNums": "4", "perm": "6", "topicSysFlag": "0",
              "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "order": "false",
              "attributes": "+message.type=NORMAL"}  # fmt: skip
    with BlockingConnection.dial(f"127.0.0.1:{broker_port}", 10_000) as connection:
        checked(connection.request(Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields=fields)))


@contextmanager
def lightmq(scratch: Path) -> Iterator[Side]:
    """Our broker and proxy."""
    base = [sys.executable, "-m", "lightmq"]
    broker = [*base, "broker", "--json", "--controllers", "", "--data", str(scratch / "data"), "--remoting-port", "0"]
    with ExitStack() as stack:

        def started(command: list[str], name: str) -> tuple[int, psutil.Process]:
            log = stack.enter_context((scratch / name).open("w"))
            child = stack.enter_context(running(command, stdout=subprocess.PIPE, stderr=log))
            assert child.stdout is not None
            return int(json.loads(child.stdout.readline())[name]), psutil.Process(child.pid)

        broker_port, broker_process = started([*broker, "--admin-port", "0"], "remoting")
        make_topic(broker_port)
        proxy = [*base, "grpc-proxy", "--json", "--broker", f"127.0.0.1:{broker_port}", "--grpc-port", "0"]
        port, proxy_process = started([*proxy, "--admin-port", "0"], "grpc")
        yield Side(port, proxy_process, broker_process)


@contextmanager
def rocketmq(scratch: Path, folder: Path) -> Iterator[Side]:
    """RocketMQ's name server, broker and proxy."""
    address, broker_port, port = free_port(), free_port(), free_port()
    (scratch / "namesrv.conf").write_text(f"listenPort={address}\n")
    lines = [f"listenPort={broker_port}", f"haListenPort={free_port()}", f"namesrvAddr=127.0.0.1:{address}"]
    lines += ["brokerIP1=127.0.0.1", "brokerName=peer", "brokerClusterName=DefaultCluster", "flushDiskType=SYNC_FLUSH"]
    lines += [f"waitTimeMillsIn{queue}Queue={QUEUED_MS_MAX}" for queue in ("Send", "Pull", "Ack", "LitePull")]
    lines += [f"storePathRootDir={scratch}/store", f"storePathCommitLog={scratch}/store/commitlog"]
    (scratch / "broker.conf").write_text("\n".join(lines))
    proxy = {
        "rocketMQClusterName": "DefaultCluster", "proxyMode": "cluster", "namesrvAddr": f"127.0.0.1:{address}",
        "grpcServerPort": port, "remotingListenPort": free_port(), "localServeAddr": "127.0.0.1",
    }  # fmt: skip
    (scratch / "proxy.json").write_text(json.dumps(proxy))
    with ExitStack() as stack:

        def started(main: str, heap: Sequence[str], *arguments: str) -> psutil.Process:
            log = stack.enter_context((scratch / main.rpartition(".")[2]).open("w"))
            command = java(folder, scratch, heap, f"org.apache.rocketmq.{main}", *arguments)
            return psutil.Process(stack.enter_context(running(command, stdout=log, stderr=log)).pid)

        started("namesrv.NamesrvStartup", OTHER_HEAP, "-c", str(scratch / "namesrv.conf"))
        wait_listening(address)
        heap = "-Xms1g", "-Xmx1g"
        broker = started("broker.BrokerStartup", heap, "-c", str(scratch / "broker.conf"))
        wait_listening(broker_port)
        wait_registered(address)
        make_topic(broker_port)
        yield Side(port, started("proxy.ProxyStartup", heap, "-pc", str(scratch / "proxy.json")), broker)


def sending(count: int) -> bytes:
    """A SendMessage with so many messages."""
    system = {
        "message_id": "01" * 17, "message_type": d.MessageType.NORMAL, "body_encoding": d.Encoding.IDENTITY,
        "tag": "tag", "keys": ["key"], "born_host": "bench", "born_timestamp": {"seconds": 1_700_000_000},
    }  # fmt: skip
    message = d.Message(topic=RESOURCE, body=BODY, system_properties=system, user_properties={"number": "1"})
    return bytes(s.SendMessageRequest(messages=[message] * count).SerializeToString())


RECEIVE = s.ReceiveMessageRequest(
    group=READERS, message_queue={"topic": RESOURCE, "id": -1, "broker": {"name": "peer"}, "permission": 3},
    batch_size=BATCH, invisible_duration={"seconds": 600}, long_polling_timeout={"seconds": 1},
    filter_expression={"type": d.FilterType.TAG, "expression": "*"},
).SerializeToString()  # fmt: skip
SETTINGS = s.TelemetryCommand(settings={
    "client_type": d.ClientType.SIMPLE_CONSUMER, "access_point": {}, "request_timeout": {"seconds": 10},
    "subscription": {
        "group": READERS, "subscriptions": [{"topic": RESOURCE, "expression": {"type": 1, "expression": "*"}}],
    },
}).SerializeToString()  # fmt: skip


@asynccontextmanager
async def settled(port: int) -> AsyncIterator[Any]:
    """A channel of a client that has shown its settings."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stream = channel.stream_stream(f"/{NAME}/Telemetry")(metadata=METADATA)
        await stream.write(SETTINGS)
        await stream.read()
        yield channel
        stream.cancel()


async def send(channel: Any, raw: bytes) -> int:
    """A SendMessage of a full batch; the number of its messages, for which RocketMQ's proxy answers with one entry."""
    answer = s.SendMessageResponse.FromString(
        await channel.unary_unary(f"/{NAME}/SendMessage")(raw, metadata=METADATA, timeout=10)
    )
    assert answer.status.code == d.Code.OK, answer
    return BATCH


async def receive(channel: Any) -> int:
    """A receive, and one acknowledgement of what it brought."""
    entries = []
    async for raw in channel.unary_stream(f"/{NAME}/ReceiveMessage")(RECEIVE, metadata=METADATA, timeout=10):
        system = s.ReceiveMessageResponse.FromString(raw).message.system_properties
        if system.receipt_handle:
            entries.append({"message_id": system.message_id, "receipt_handle": system.receipt_handle})
    if entries:
        request = s.AckMessageRequest(group=READERS, topic=RESOURCE, entries=entries)
        call = channel.unary_unary(f"/{NAME}/AckMessage")
        raw = await call(request.SerializeToString(), metadata=METADATA, timeout=10)
        assert s.AckMessageResponse.FromString(raw).status.code == d.Code.OK
    return len(entries)


async def calls(port: int, kind: str, messages: int) -> tuple[int, float]:
    """Work until so many messages are done; (messages, seconds)."""
    raw, done = sending(BATCH), 0

    async def worker(channel: Any) -> None:
        nonlocal done
        while done < messages:
            stored = await (send(channel, raw) if kind == "sends" else receive(channel))
            done += stored  # read after the wait: the workers share it

    async with settled(port) as channel:
        begun = perf_counter()
        await asyncio.gather(*(worker(channel) for _ in range(CALLS)))
        return done, perf_counter() - begun


class Load:
    """The two clients before one side."""

    def __init__(self, side: Side, child: subprocess.Popen[str] | None) -> None:
        self._side, self._child = side, child
        if child is not None:
            self._expect("ready")

    def run(self, work: str, messages: int) -> Figures | None:
        """The figures of one line; None when its client is not there."""
        before = cpu_s(self._side.proxy), cpu_s(self._side.broker)
        if work in ("sends", "receives"):
            done, took = run(calls(self._side.port, work, messages))
        elif self._child is None:
            return None
        else:
            assert self._child.stdin is not None
            self._child.stdin.write(f"{work} {messages}\n")
            self._child.stdin.flush()
            _done, number, seconds = self._expect("done")
            done, took = int(number), float(seconds)
        after = cpu_s(self._side.proxy), cpu_s(self._side.broker)
        proxy_us, broker_us = ((end - begun) / done * 1e6 for begun, end in zip(before, after, strict=True))
        return Figures(done / took, proxy_us, broker_us)

    def _expect(self, word: str) -> list[str]:
        assert self._child is not None
        assert self._child.stdout is not None
        for line in self._child.stdout:
            if line.startswith(word):
                return line.split()
        raise SystemExit(f"the client ended with status {self._child.wait()}")


def wait_serving(port: int) -> None:
    """Wait until a call of a client succeeds, some time after the proxy listens."""
    deadline = monotonic() + START_TIMEOUT_S
    while True:
        try:
            run(calls(port, "sends", 1))
        except (grpc.aio.AioRpcError, AssertionError):
            if monotonic() > deadline:
                raise
            sleep(0.5)
        else:
            return


def measure(
    name: str, folders: Mapping[str, Path], classes: Path, lines: Mapping[str, str], messages: int
) -> dict[str, Figures]:
    """These lines against servers that are started for them."""
    figures = {}
    with tempfile.TemporaryDirectory(prefix="grpc-calls-", dir=".") as made, ExitStack() as stack:
        scratch = Path(made).absolute()
        side = lightmq(scratch) if name == "lightmq" else rocketmq(scratch, folders["server"])
        started = stack.enter_context(side)
        wait_serving(started.port)
        child = None
        if folders:
            command = java(folders["client"], classes, OTHER_HEAP, "GrpcLoad", f"127.0.0.1:{started.port}", TOPIC)
            errors = stack.enter_context((scratch / "client").open("w"))
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors}
            child = stack.enter_context(running(command, **pipes))
        load = Load(started, child)
        for line, work in lines.items():
            if work.split()[0] in ("simple", "receives", "push"):
                load.run("sends", 2 * messages)
            load.run(work, messages)
            found = load.run(work, messages)
            if found is not None:
                figures[line] = found
    return figures


def show(rounds: Mapping[str, list[dict[str, Figures]]], lines: Mapping[str, str]) -> None:
    """The table: a line per work and side, with the ratios of ours to RocketMQ's."""
    print(f"{'work':<18}{'':<10}{'msg/s':>9}{'proxy us/msg':>14}{'broker us/msg':>15}{'both':>9}")
    for line in lines:
        best = {}
        for name, measured in rounds.items():
            found = [each[line] for each in measured if line in each]
            if not found:
                continue
            one = best[name] = Figures(
                max(each.rate for each in found),
                min(each.proxy_us for each in found),
                min(each.broker_us for each in found),
            )
            both = one.proxy_us + one.broker_us
            print(f"{line:<18}{name:<10}{one.rate:>9,.0f}{one.proxy_us:>14.1f}{one.broker_us:>15.1f}{both:>9.1f}")
        if len(best) > 1:
            ours, peer = best["lightmq"], best["rocketmq"]
            both = (ours.proxy_us + ours.broker_us) / (peer.proxy_us + peer.broker_us)
            ratios = ours.rate / peer.rate, ours.proxy_us / peer.proxy_us, ours.broker_us / peer.broker_us, both
            print(f"{'':<18}{'ratio':<10}{ratios[0]:>9.2f}{ratios[1]:>14.2f}{ratios[2]:>15.2f}{ratios[3]:>9.2f}")


def main() -> None:
    """Run the rounds and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=20_000, help="messages of a line")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", choices=("lightmq", "rocketmq"), help="measure one side")
    parser.add_argument("--line", action="append", default=[], help="part of a line's name; may be repeated")
    options = parser.parse_args()
    lines = {each: work for each, work in LINES.items() if not options.line or any(p in each for p in options.line)}
    server, client = jars("rocketmq-proxy"), jars("rocketmq-grpc-client")
    folders = {"server": server, "client": client} if server is not None and client is not None else {}
    names = [name for name in ("lightmq", "rocketmq") if options.only in (None, name)]
    rounds: dict[str, list[dict[str, Figures]]] = {name: [] for name in (names if folders else ["lightmq"])}
    with tempfile.TemporaryDirectory() as made:
        if folders:
            compiled("GrpcLoad", folders["client"], Path(made))
        for _ in range(options.rounds):
            for name, measured in rounds.items():
                measured.append(measure(name, folders, Path(made), lines, options.messages))
    show(rounds, lines)


if __name__ == "__main__":
    main()
