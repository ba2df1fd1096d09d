"""Storms of CONNECTs: a fleet with passwords that reconnects at once, and sockets that fight for one client id.

    python -m benchmarks storms [--sessions N] [--fighters N] [--memory-kib N] [--port P]      5,000 and 50

The fleet: N sessions, each with a user of its own, connect at the same moment, once with a cold cache and once after
all were cut; counted is what each was answered, and how long that took. `--memory-kib` is the cost of a hash: a small
one unless said otherwise, so that the storm and not argon2 is measured; 65536 is that of `lightmq passwd`, of which the
rate is printed.
The fight: N sockets in a process of their own connect with the same client id, and again as soon as they are closed; a
stranger publishes with QoS 1 before, meanwhile and after. `--port` takes a server that is running, for the fight alone.
The exit status is 1 when anybody was closed without CONNACK.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import argon2

from benchmarks.connections import Server
from mqtt_proxy.access.credentials import make_hash, verify

DEADLINE_S = 900.0
PHASE_S = 4.0
FIGHT_S = 8.0
PAUSE_S = 0.02
CLOSED = "closed without CONNACK"


def connect_packet(client_id: str, user: str = "", *, clean: bool = False) -> bytes:
    """CONNECT of MQTT 5 with a session that lasts ten minutes; the password is the user's name."""
    body = b"\x00\x04MQTT\x05" + bytes([(0xC0 if user else 0) | (2 if clean else 0)]) + b"\x00\x00"
    body += b"\x05\x11\x00\x00\x02\x58"
    for text in (client_id, user, user) if user else (client_id,):
        body += len(text).to_bytes(2, "big") + text.encode()
    return (
        b"\x10" + bytes([len(body)]) + body if len(body) < 128 else b"\x10" + bytes([len(body) & 127 | 128, 1]) + body
    )


async def packet(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """One short packet: type and body."""
    first, length = await reader.readexactly(2)
    if length & 128:
        length = length & 127 | (await reader.readexactly(1))[0] << 7
    return first >> 4, await reader.readexactly(length)


async def connect(port: int, sent: bytes) -> tuple[str, asyncio.StreamReader, asyncio.StreamWriter]:
    """What a CONNECT was answered, and its socket."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    try:
        kind, body = await packet(reader)
    except (asyncio.IncompleteReadError, ConnectionError):
        return CLOSED, reader, writer
    assert kind == 2, kind
    return f"CONNACK {body[1]:#04x}", reader, writer


def spread(values: list[float]) -> str:
    """Median, 99th percentile and maximum of seconds, in milliseconds."""
    values = sorted(values)
    p99 = values[min(len(values) - 1, len(values) * 99 // 100)]
    return f"{statistics.median(values) * 1e3:.1f} / {p99 * 1e3:.1f} / {values[-1] * 1e3:.1f} ms"


async def storm(port: int, sessions: int) -> Counter[str]:
    """Every session connects at the same moment; then all are cut."""
    begun = asyncio.Event()
    taken: list[float] = []

    async def one(number: int) -> tuple[str, asyncio.StreamWriter]:
        await begun.wait()
        at = time.monotonic()
        found, _reader, writer = await connect(port, connect_packet(f"device-{number}", f"user-{number}"))
        taken.append(time.monotonic() - at)
        return found, writer

    tasks = [asyncio.create_task(one(number)) for number in range(sessions)]
    begun.set()
    async with asyncio.timeout(DEADLINE_S):
        ended = await asyncio.gather(*tasks)
    for _found, writer in ended:
        writer.transport.abort()
    print(f"   until CONNACK: median / p99 / max {spread(taken)}")
    return Counter(found for found, _writer in ended)


def users_file(folder: Path, sessions: int, memory_kib: int) -> Path:
    """Users `user-N` with their name as password, at this cost of a hash."""
    hasher = argon2.PasswordHasher(time_cost=1, memory_cost=memory_kib, parallelism=1)
    if memory_kib == argon2.DEFAULT_MEMORY_COST:
        hasher = argon2.PasswordHasher()
    path = folder / "users"
    path.touch(mode=0o600)
    path.write_text("".join(f"user-{number}:{hasher.hash(f'user-{number}')}\n" for number in range(sessions)))
    return path


def fleet(sessions: int, memory_kib: int) -> bool:
    """Whether every session got a CONNACK, twice."""
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder), "--password-file", str(users_file(Path(folder), sessions, memory_kib)))
        answers: Counter[str] = Counter()
        try:
            for name in ("cold cache", "after all were cut"):
                cpu_s, at = server.cpu_s(), time.monotonic()
                found = asyncio.run(storm(server.ports["mqtt"], sessions))
                took_s = time.monotonic() - at
                print(f"{name}: {sessions} at once in {took_s:.1f} s, CPU {server.cpu_s() - cpu_s:.1f} s:", dict(found))
                answers += found
        finally:
            server.stop()
    return answers == Counter({"CONNACK 0x00": 2 * sessions})


def checks_per_s() -> float:
    """Checks of a password made by `lightmq passwd` in a second of CPU."""
    stored, cpu_s, count = make_hash("right"), time.process_time(), 20
    for _ in range(count):
        assert verify(stored, b"right")
    return count / (time.process_time() - cpu_s)


async def _fight(port: int, fighters: int, until_s: float) -> Counter[str]:
    found: Counter[str] = Counter()

    async def one() -> None:
        while time.monotonic() < until_s:
            with contextlib.suppress(ConnectionError):
                answer, reader, writer = await connect(port, connect_packet("fought"))
                found[answer] += 1
                with contextlib.suppress(TimeoutError, asyncio.IncompleteReadError):
                    async with asyncio.timeout(1):
                        kind, body = await packet(reader)
                        found[f"DISCONNECT {body[0]:#04x}" if kind == 14 and body else f"packet {kind}"] += 1
                writer.transport.abort()

    await asyncio.gather(*[one() for _ in range(fighters)])
    return found


async def fighters_apart(port: int, fighters: int) -> Counter[str]:
    """The fight in a process of its own: what its sockets were answered."""
    command = [sys.executable, "-m", "benchmarks.connect_storms", "--port", str(port), "--fighters", str(fighters)]
    process = await asyncio.create_subprocess_exec(*command, "--only-fight", stdout=asyncio.subprocess.PIPE)
    told, _errors = await process.communicate()
    return Counter(json.loads(told))


async def stranger(port: int, fighters: int) -> Counter[str]:
    """Publish beside the fight; what the fighters were answered."""
    _found, reader, writer = await connect(port, connect_packet("stranger", clean=True))
    taken: dict[str, list[float]] = {"before": [], "meanwhile": [], "after": []}

    async def publish(phase: str, until: asyncio.Task[Counter[str]] | None = None) -> None:
        ends_s = time.monotonic() + PHASE_S
        while not until.done() if until is not None else time.monotonic() < ends_s:
            at = time.monotonic()
            writer.write(b"\x32\x0d\x00\x07storm/s\x00\x01\x00x")
            kind, _body = await packet(reader)
            assert kind == 4, kind
            taken[phase].append(time.monotonic() - at)
            await asyncio.sleep(PAUSE_S)

    await publish("before")
    fought = asyncio.create_task(fighters_apart(port, fighters))
    await publish("meanwhile", fought)
    await publish("after")
    writer.transport.abort()
    for phase, values in taken.items():
        print(f"   stranger {phase}: {len(values)} publishes, median / p99 / max {spread(values)}")
    return fought.result()


def main() -> int:
    """Both storms."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=5_000)
    parser.add_argument("--fighters", type=int, default=50)
    parser.add_argument("--memory-kib", type=int, default=1_024)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--only-fight", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if chosen.only_fight:
        print(json.dumps(asyncio.run(_fight(chosen.port, chosen.fighters, time.monotonic() + FIGHT_S))))
        return 0
    all_answered = True
    if not chosen.port and chosen.sessions:
        print(
            f"load {os.getloadavg()[0]:.0f}; argon2 as of `lightmq passwd`: {checks_per_s():.1f} checks a second of CPU"
        )
        all_answered = fleet(chosen.sessions, chosen.memory_kib)
    if chosen.fighters:
        with tempfile.TemporaryDirectory() as folder:
            server = None if chosen.port else Server(Path(folder))
            try:
                found = asyncio.run(stranger(server.ports["mqtt"] if server else chosen.port, chosen.fighters))
            finally:
                if server is not None:
                    server.stop()
        print(f"{chosen.fighters} sockets fight for {FIGHT_S:.0f} s:", dict(found))
        all_answered &= not found[CLOSED]
    return 0 if all_answered else 1


if __name__ == "__main__":
    sys.exit(main())
