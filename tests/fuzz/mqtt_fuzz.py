"""A real server, valid and invalid clients of both versions, and a judge after every round.

    python -m tests.fuzz.mqtt_fuzz --seconds 600 --seed 7

Rounds take turns: valid sessions, packets cut at every byte, one byte at a time, damage, forbidden packets, broken
CONNECTs, WebSocket frames. Invariant: what a round sends is a function of seed and number; `--round` repeats one.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.fuzz import mqtt_grammar as grammar
from tests.fuzz.mqtt_mutations import change_bytes, damaged
from tests.fuzz.mqtt_probe import Broken, Case, run_case, run_websocket
from tests.processes.rig import Client, Server

AT_ONCE = 32
"""Connections at a time; each has a client id of its own."""
GROWTH_KB_MAX = 96 * 1024
"""Anonymous memory may grow by this from the first turn of all kinds to the end, whatever was sent."""
UNWANTED = ("Traceback", "internal_error", "delivery_failed", "never retrieved", "unhandled", "never awaited")
PING = b"\xc0\x00"


def client_id(slot: int) -> str:
    """One of `AT_ONCE`."""
    return f"fuzz-{slot % AT_ONCE:02}"


def valid(rng: random.Random) -> list[Case]:
    """Sessions whose packets must all be answered."""
    cases = []
    for slot in range(AT_ONCE):
        level = rng.choice(grammar.LEVELS)
        hello, *rest = grammar.session(rng, level, client_id(slot))
        cases.append(Case("valid", level, hello, [b"".join(rest), PING, grammar.farewell(rng, level)], "valid"))
    return cases


def cut(rng: random.Random) -> list[Case]:
    """A session whose last packet is cut at every byte."""
    level = rng.choice(grammar.LEVELS)
    hello, *rest = grammar.session(rng, level, "")
    *before, last = rest
    cases = []
    for at in range(min(len(last), 200)):
        hello = grammar.connect(rng, level, client_id(at))
        cases.append(Case("cut", level, hello, [b"".join(before), last[:at]], linger=at % 8 == 0))
    return cases


def cut_connect(rng: random.Random) -> list[Case]:
    """A CONNECT cut at every byte."""
    level = rng.choice(grammar.LEVELS)
    hello = grammar.connect(rng, level, client_id(0))
    return [Case("cut_connect", level, hello[:at], told="raw") for at in range(1, len(hello))]


def dribble(rng: random.Random) -> list[Case]:
    """Valid and damaged sessions, one byte at a time."""
    cases = []
    for slot in range(8):
        level = rng.choice(grammar.LEVELS)
        hello, *rest = grammar.session(rng, level, client_id(slot))
        good = slot % 2 == 0
        data = b"".join(rest if good else damaged(rng, rest)) + PING
        pieces = [data[at : at + 1] for at in range(len(data))]
        cases.append(Case("dribble", level, hello, pieces, "valid" if good else "any"))
    return cases


def damage(rng: random.Random) -> list[Case]:
    """Damaged packets behind a valid CONNECT."""
    cases = []
    for slot in range(4 * AT_ONCE):
        level = rng.choice(grammar.LEVELS)
        hello, *rest = grammar.session(rng, level, client_id(slot))
        pieces = [b"".join(damaged(rng, rest)) + PING]
        cases.append(Case("damage", level, hello, pieces, linger=rng.random() < 0.2))
    return cases


def damage_connect(rng: random.Random) -> list[Case]:
    """A damaged CONNECT, with and without further packets."""
    cases = []
    for slot in range(2 * AT_ONCE):
        hello, *rest = grammar.session(rng, rng.choice(grammar.LEVELS), client_id(slot))
        data = damaged(rng, [hello])[0] + (b"".join(rest) if rng.random() < 0.5 else b"")
        cases.append(Case("damage_connect", None, data, told="raw"))
    return cases


def crimes(rng: random.Random) -> list[Case]:
    """Every forbidden packet of one version, after a few valid ones."""
    level = rng.choice(grammar.LEVELS)
    cases = []
    for slot, (name, data) in enumerate(grammar.crimes(level).items()):
        hello, *rest = grammar.session(rng, level, client_id(slot))
        cases.append(Case("crime", level, hello, [b"".join(rest[:2]) + data], "crime", name=name))
    return cases


REQUEST = (
    b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: %s\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
)


def frames(rng: random.Random, data: bytes) -> bytes:
    """The bytes as masked frames of any length, with pings in between and then damage."""
    out = b""
    while data:
        size = rng.choice((1, 2, 20, 200))
        piece, data = data[:size], data[size:]
        mask = rng.randbytes(4)
        length = bytes([0x80 | len(piece)]) if len(piece) < 126 else b"\xfe" + len(piece).to_bytes(2, "big")
        out += b"\x82" + length + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(piece))
        out += rng.choice((b"", b"", b"\x89\x80" + mask, b"\x02\x80" + mask + b"\x80\x80" + mask))
    return change_bytes(rng, out) if rng.random() < 0.8 else out


def websocket(rng: random.Random) -> list[Case]:
    """Sessions inside damaged frames."""
    cases = []
    for slot in range(AT_ONCE):
        data = b"".join(grammar.session(rng, rng.choice(grammar.LEVELS), client_id(slot)))
        request = REQUEST % base64.b64encode(rng.randbytes(16))
        cases.append(Case("websocket", None, request, [frames(rng, data)]))
    return cases


KINDS: tuple[Callable[[random.Random], list[Case]], ...] = (
    valid, cut, cut_connect, dribble, damage, damage_connect, crimes, websocket, damage, crimes,
)  # fmt: skip


class Fuzz:
    """A server with its fuzzed clients."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.seed = seed
        self.ends: Counter[str] = Counter()
        self.cases = 0
        self.server = Server(directory / "data", "--ws-port", "0", "--log-level", "info")
        self.server.start()
        self.healthy = Client(self.server, "healthy")
        self.healthy.subscribe(("healthy/#", 1))
        self.before_kb = 0
        self.grown_kb = 0
        self._read = 0

    async def _one(self, case: Case) -> None:
        try:
            if case.kind == "websocket":
                port = self.server.ports["mqtt-ws"]
                end = await run_websocket(port, case.hello, case.pieces[0])
            else:
                end = await run_case(self.server.port, case)
        except Broken as broken:
            raise Broken(f"{broken}\n  {case}") from broken
        except OSError as error:
            raise Broken(f"no connection: {error!r}\n  {case}") from error
        self.ends[f"{case.kind}: {end}"] += 1

    async def _all(self, cases: list[Case]) -> None:
        for first in range(0, len(cases), AT_ONCE):
            under_way = [self._one(case) for case in cases[first : first + AT_ONCE]]
            ends = await asyncio.gather(*under_way, return_exceptions=True)
            broken = [end for end in ends if isinstance(end, BaseException)]
            if broken:
                raise Broken("\n".join(map(str, broken)))

    def round(self, number: int) -> None:
        """One kind, then the judge; a failure names seed, round and bytes."""
        rng = random.Random(f"{self.seed}-{number}")
        cases = KINDS[number % len(KINDS)](rng)
        try:
            asyncio.run(self._all(cases))
            self._judge(number)
        except AssertionError as broken:
            sent = "" if isinstance(broken, Broken) and "sent=" in str(broken) else "\n  ".join(map(str, cases))
            raise SystemExit(f"{sent}\nBROKEN --seed {self.seed} --round {number}: {broken}") from broken
        self.cases += len(cases)
        if number % 100 == 0:
            print(f"round {number}: {self.cases} connections, memory grew by {self.grown_kb} KB", flush=True)

    def _judge(self, number: int) -> None:
        assert self.server.process is not None
        assert self.server.process.poll() is None, f"the server died: {self.server.process.poll()}"
        self.healthy.publish("healthy/pulse", b"%d" % number)
        self.healthy.until(lambda: self.healthy.latest.get("healthy/pulse") == b"%d" % number)
        self.healthy.messages.clear()
        with self.server.log.open("rb") as log:
            log.seek(self._read)
            new = log.read()
        self._read += len(new)
        for word in UNWANTED:
            assert word.encode() not in new, f"{word!r} in {new[-3000:].decode(errors='replace')}"
        if number >= len(KINDS):
            self.before_kb = self.before_kb or self.server.rss_kb()
            self.grown_kb = self.server.rss_kb() - self.before_kb
            assert self.grown_kb <= GROWTH_KB_MAX, f"memory grew by {self.grown_kb} KB in {self.cases} connections"

    def end(self) -> None:
        """An orderly stop, with the healthy client connected to the end."""
        self.healthy.close()
        status = self.server.end(signal.SIGTERM)
        if status:
            raise SystemExit(f"BROKEN --seed {self.seed}: the server ended with {status}")


def main() -> int:
    """Run rounds until the time is over, or one."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--round", type=int, default=None)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mqtt-fuzz-") as directory:
        fuzz = Fuzz(Path(directory), given.seed)
        try:
            number = 0
            ends_at = time.monotonic() + given.seconds
            while given.round is None and time.monotonic() < ends_at:
                fuzz.round(number)
                number += 1
            if given.round is not None:
                fuzz.round(given.round)
            fuzz.end()
        finally:
            fuzz.server.kill_if_running()
        for end, count in sorted(fuzz.ends.items()):
            print(f"  {count:7} {end}")
        print(f"{number} rounds, {fuzz.cases} connections, memory grew by {fuzz.grown_kb} KB, seed {given.seed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
