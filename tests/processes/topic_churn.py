"""Topics that are published once, by the hundred thousand: what is left of them in queues, log and memory.

    python -m tests.processes.topic_churn [--topics 300000] [--limit-mib 32] [--expiry-s 5]

A broker with a small log takes one message on each of many MQTT topics, then messages on a few topics until the others
have expired, and is restarted. A line is printed after each step: queues, bytes of the log's files, anonymous memory.
The quick variant is `test_topic_churn`. With `--expiry-s 0` no queue ends, as it was before they did.

Invariant: what `run` returns was read from the server's metrics and files, never computed here.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from remoting.client.connection import Connection, dial
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.image import encode_mqtt_image
from tests.processes.rig import Installation

MIB = 1024 * 1024
TOPICS_PER_REQUEST = 500
BODY_BYTES = 100
FILLER_BYTES = 20_000
POLL_S = 0.2
DEADLINE_S = 600.0


@dataclass(frozen=True)
class Reading:
    """What a server has at one moment."""

    step: str
    queues: int
    log_bytes: int
    memory_bytes: int

    def __str__(self) -> str:
        log, memory = self.log_bytes / MIB, self.memory_bytes / MIB
        return f"{self.step:24} {self.queues:9,} queues   log {log:7.1f} MiB   memory {memory:7.1f} MiB"


class Churn:
    """One server and what is done with it."""

    def __init__(
        self, data: Path, *options: str, limit_bytes: int, expiry_s: int, report: Callable[[Reading], None]
    ) -> None:
        """`options`: further ones of the server."""
        self.server = Installation(
            data, f"--set=broker.store.retention_size_bytes={limit_bytes}",
            f"--set=broker.unused_queue_expiry_s={expiry_s}", "--set=broker.store.flush=async", *options,
        )  # fmt: skip
        self._limit_bytes = limit_bytes
        self._report = report
        self.largest_log_bytes = 0
        """Of all readings."""

    async def run(self, topics: int) -> dict[str, Reading]:
        """Publish, let expire, restart; returns the readings by step."""
        self.server.start()
        try:
            connection = await dial(self.server.address)
            readings = [await self._read(connection, "started")]
            await self._publish(connection, topics)
            readings.append(await self._read(connection, "published"))
            await self._expire(connection, most=readings[0].queues + 100)
            await self._until_small()
            readings.append(await self._read(connection, "expired"))
            await connection.close()
            assert self.server.end(signal.SIGTERM) == 0
            self.server.start()
            connection = await dial(self.server.address)
            readings.append(await self._read(connection, "restarted"))
            await connection.close()
        finally:
            self.server.kill_if_running()
        return {reading.step: reading for reading in readings}

    async def _publish(self, connection: Connection, topics: int) -> None:
        for first in range(0, topics, TOPICS_PER_REQUEST):
            await self._send(connection, [
                (b"churn/%d/value" % number, BODY_BYTES)
                for number in range(first, min(first + TOPICS_PER_REQUEST, topics))
            ])  # fmt: skip
            self._weigh()

    async def _expire(self, connection: Connection, most: int) -> None:
        """Publish on few topics until the others have left the log, then wait until at most so many queues are left."""
        async with asyncio.timeout(DEADLINE_S):
            sent = 0
            while sent < 2 * self._limit_bytes or (await self._read(connection, "")).queues > most:
                await self._send(connection, [(b"steady/%d" % number, FILLER_BYTES) for number in range(20)])
                sent += 20 * FILLER_BYTES
                if sent > 2 * self._limit_bytes:
                    await asyncio.sleep(POLL_S)

    async def _until_small(self) -> None:
        """Wait until the log keeps to its limit: more may come between two rounds of the upkeep."""
        async with asyncio.timeout(DEADLINE_S):
            while self._weigh() > self._limit_bytes:
                await asyncio.sleep(POLL_S)

    async def _send(self, connection: Connection, messages: list[tuple[bytes, int]]) -> None:
        images = b"".join([encode_mqtt_image(topic, bytes(size), 1, 1_000, b"churn") for topic, size in messages])
        reply = await connection.request(Command(RequestCode.APPEND_MANY, body=images))
        assert reply.code == 0, reply.remark

    async def _read(self, connection: Connection, step: str) -> Reading:
        reply = await connection.request(Command(RequestCode.METRICS))
        queues = json.loads(reply.body)["status"]["store"]["queues"]
        reading = Reading(step, queues, self._weigh(), 1024 * self.server.rss_kb())
        if step:
            self._report(reading)
        return reading

    def _weigh(self) -> int:
        size = sum(path.stat().st_size for path in self._log.iterdir())
        self.largest_log_bytes = max(self.largest_log_bytes, size)
        return size

    @property
    def _log(self) -> Path:
        return next(self.server.data.glob("**/log"))


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=300_000)
    parser.add_argument("--limit-mib", type=int, default=32)
    parser.add_argument("--expiry-s", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        churn = Churn(
            Path(directory) / "data", limit_bytes=options.limit_mib * MIB, expiry_s=options.expiry_s, report=print
        )
        asyncio.run(churn.run(options.topics))
        print(f"largest log              {churn.largest_log_bytes / MIB:7.1f} MiB")


if __name__ == "__main__":
    main()
