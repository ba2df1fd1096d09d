"""What users see of replication: broker processes with our batching producer, one alone against a group of two.

Both flush before they acknowledge; in the group a message is acknowledged when both disks have it. CPU is that of all
threads of a process per acknowledged message, the producer's own among it: where all processes share few cores, the
rate is that of the machine, and the CPU shows what each node could do with cores of its own. Then a replica is stopped,
the master continues alone, and the replica is started again: time until it is in the SyncStateSet, per GiB that it was
behind, without the start of its process.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

from benchmarks.cpu_clocks import process_cpu_s
from benchmarks.group_processes import Group, folder_for_data
from remoting.client.admin import AsyncAdmin
from remoting.client.batching import AsyncProducer, Message, ProducerSettings
from remoting.client.connection import connect
from runtime.process import run

TOPIC = "load"
QUEUES = 4
BODY_BYTES = 100
BEHIND_BODY_BYTES = 1024
GIB = 1 << 30


async def produce(port: int, messages: int, body_bytes: int) -> None:
    """Send so many messages, batched; return when all are acknowledged."""
    connection = await connect("127.0.0.1", port)
    producer = AsyncProducer(connection, ProducerSettings(codec="none"))
    message = Message(topic=TOPIC, body=bytes(body_bytes))
    for _ in range(messages - 1):
        await producer.send(message)
    await (await producer.send(message))
    await producer.flush()
    await producer.close()
    await connection.close()


async def make_topic(port: int) -> None:
    """The topic, on this broker."""
    connection = await connect("127.0.0.1", port)
    await AsyncAdmin(connection).create_topic(TOPIC, QUEUES)
    await connection.close()


def throughput(brokers: int, messages: int) -> float:
    """Print and return the acknowledged messages a second of a group of so many."""
    with tempfile.TemporaryDirectory(prefix="lightmq-bench-", dir=folder_for_data()) as name:
        group = Group(Path(name), brokers)
        try:
            group.start()
            port = group.brokers[0].port
            run(make_topic(port))
            run(produce(port, messages // 10, BODY_BYTES))
            processes = [os.getpid(), *(each.id for each in group.brokers)]
            before, begun = [process_cpu_s(each) for each in processes], time.perf_counter()
            run(produce(port, messages, BODY_BYTES))
            wall_s = time.perf_counter() - begun
            used = [process_cpu_s(each) - earlier for each, earlier in zip(processes, before, strict=True)]
        finally:
            group.end()
    each = [f"{cpu_s * 1e6 / messages:8.3f}" for cpu_s in used]
    print(f"{brokers:7}  {messages / wall_s:10,.0f}  {'  '.join(each)}", flush=True)
    return messages / wall_s


def catch_up(behind_bytes: int) -> None:
    """Print how long a replica takes to catch up after the master continued without it."""
    with tempfile.TemporaryDirectory(prefix="lightmq-bench-", dir=folder_for_data()) as name:
        group = Group(Path(name), 2, in_sync_min=1)
        try:
            group.start()
            master, replica = group.brokers
            run(make_topic(master.port))
            replica.end()
            first = int(master.member()["end"])
            behind = 0
            while behind < behind_bytes:
                count = min(100_000, 1 + (behind_bytes - behind) // BEHIND_BODY_BYTES)
                run(produce(master.port, count, BEHIND_BODY_BYTES))
                behind = int(master.member()["end"]) - first
            replica.start()
            begun, before = time.perf_counter(), [process_cpu_s(each.id) for each in (master, replica)]
            group.until_in_sync(2)
            wall_s = time.perf_counter() - begun
            used = [process_cpu_s(each.id) - at for each, at in zip((master, replica), before, strict=True)]
        finally:
            group.end()
    gib = behind / GIB
    cpu = f"CPU s per GiB: master {used[0] / gib:.2f}, replica {used[1] / gib:.2f}"
    print(f"replica {gib:.2f} GiB behind: in sync after {wall_s:.2f} s, {wall_s / gib:.2f} s per GiB; {cpu}")


def main() -> None:
    """Print the table, the ratio and the time to catch up."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=500_000)
    parser.add_argument("--behind-mib", type=int, default=1024, help="0: leave it out")
    options = parser.parse_args()
    print("brokers  acknowledged/s   CPU us/message: producer, master, replica")
    alone, both = throughput(1, options.messages), throughput(2, options.messages)
    print(f"a group of two takes {100 * both / alone:.0f} % of what one broker takes")
    if options.behind_mib:
        catch_up(options.behind_mib << 20)


if __name__ == "__main__":
    main()
