"""One connection of the fuzzer: what it sends, what it waits for, and whether the answers are MQTT."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field

ANSWER_S = 20.0
"""Longest wait for what must come: an answer, or the end of the connection."""
LINGER_S = 0.02
"""How long some cases wait for answers before they finish."""

FROM_SERVERS = {0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0x90, 0xB0, 0xD0}
CONNACK, PINGRESP, DISCONNECT, AUTH = 0x20, 0xD0, 0xE0, 0xF0
NO_FLAGS = {0x60: 2}


class Broken(AssertionError):
    """The server broke a rule."""


@dataclass
class Case:
    """One connection. `level` is None where damage may have changed it."""

    kind: str
    level: int | None
    hello: bytes
    """The CONNECT, or the whole input when `told` is "raw"."""
    pieces: list[bytes] = field(default_factory=list)
    told: str = "any"
    """"valid": all is answered. "crime": the server must end it by itself. "any": it may. "raw": so, from the start."""
    linger: bool = False
    name: str = ""

    def __str__(self) -> str:
        sent = " ".join(one.hex() for one in (self.hello, *self.pieces))
        return f"{self.kind} {self.name} level={self.level} told={self.told} sent={sent}"


def split(data: bytes) -> tuple[list[bytes], bytes]:
    """(whole packets, the rest)."""
    found: list[bytes] = []
    at = 0
    while at < len(data):
        length, shift, position = 0, 0, at + 1
        while position < len(data):
            length |= (data[position] & 127) << shift
            shift, position = shift + 7, position + 1
            if not data[position - 1] & 128:
                break
        else:
            break
        if position + length > len(data):
            break
        found.append(data[at : position + length])
        at = position + length
    return found, data[at:]


def refused(connack: bytes) -> bool:
    """Whether this CONNACK is a refusal."""
    return connack[3] != 0


def reason_of(disconnect: bytes) -> int:
    """The reason of a DISCONNECT; 0 when it has none."""
    return disconnect[2] if len(disconnect) > 2 else 0


def judge_one(one: bytes, kind: int, *, may_be_5: bool) -> None:
    """Type, flags and reason."""
    if kind == 0x30:
        if one[0] & 6 == 6:
            raise Broken("a message of QoS 3")
        return
    if one[0] & 15 != NO_FLAGS.get(kind, 0):
        raise Broken(f"flags of {one[:64].hex()}")
    if kind not in FROM_SERVERS and not (may_be_5 and kind in (DISCONNECT, AUTH)):
        raise Broken(f"no packet of a server: {one[:64].hex()}")
    if kind == DISCONNECT and reason_of(one) < 0x80:
        raise Broken(f"a server says {one.hex()}")


def judge(case: Case, data: bytes, *, cut: bool) -> list[bytes]:
    """The packets received; raises for one that a server must not send."""
    found, rest = split(data)
    if rest and not cut:
        raise Broken(f"half a packet at the end: {rest[:64].hex()}")
    for index, one in enumerate(found):
        kind, last = one[0] & 0xF0, index == len(found) - 1
        if (kind == CONNACK) != (index == 0):
            raise Broken(f"packet {index} is {one[:64].hex()}")
        if kind == CONNACK and refused(one) and not last:
            raise Broken("something follows a refusal")
        if kind == DISCONNECT and not last:
            raise Broken(f"something follows {one.hex()}")
        judge_one(one, kind, may_be_5=case.level != 4)
    return found


class Probe:
    """A connection while it lasts."""

    def __init__(self, case: Case, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.case = case
        self.data = b""
        self.cut = False
        self._reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        """Send as much as the server reads."""
        if self._writer.transport.is_closing():
            return
        with contextlib.suppress(OSError):
            self._writer.write(data)
            await self._writer.drain()

    async def more(self) -> bool:
        """Wait for more; False at the end."""
        try:
            piece = await self._reader.read(1 << 16)
        except OSError:
            self.cut = True
            return False
        self.data += piece
        return bool(piece)

    async def until_packets(self, kind: int, count: int) -> bool:
        """Whether this many packets of this kind came before the end."""
        while sum(one[0] & 0xF0 == kind for one in split(self.data)[0]) < count:
            if not await self.more():
                return False
        return True

    async def until_closed(self) -> None:
        """Until the server ends it."""
        while await self.more():
            pass

    def finish(self) -> None:
        """Send nothing more."""
        with contextlib.suppress(OSError, RuntimeError):
            self._writer.write_eof()

    async def run(self) -> None:
        """The whole case."""
        case = self.case
        await self.send(case.hello)
        if case.told != "raw":
            if not await self.until_packets(CONNACK, 1) or refused(split(self.data)[0][0]):
                raise Broken(f"a valid CONNECT was refused: {self.data.hex()}")
            for piece in case.pieces:
                await self.send(piece)
        if case.told == "valid":
            pings = sum(piece == b"\xc0\0" for piece in split(b"".join(case.pieces))[0])
            if not await self.until_packets(PINGRESP, pings):
                raise Broken(f"a valid session was ended: {self.data[-64:].hex()}")
        elif case.told != "crime":
            if case.linger:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.more(), LINGER_S)
            self.finish()
        if case.told == "valid":
            self.finish()
        await self.until_closed()

    def verdict(self) -> str:
        """How it ended; raises for an end that is not allowed."""
        found = judge(self.case, self.data, cut=self.cut)
        said = reason_of(found[-1]) if found and found[-1][0] == DISCONNECT else None
        if self.case.told == "crime" and self.case.level == 5 and said is None and not self.cut:
            raise Broken(f"closed without a reason after {self.data.hex()}")
        return "cut" if self.cut else "closed" if said is None else f"{said:#x}"


async def run_case(port: int, case: Case) -> str:
    """Run it; returns how it ended."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    probe = Probe(case, reader, writer)
    try:
        await asyncio.wait_for(probe.run(), ANSWER_S)
    except TimeoutError as late:
        raise Broken(f"no end within {ANSWER_S} s; it said {probe.data[-64:].hex()}") from late
    finally:
        writer.transport.abort()
    return probe.verdict()


async def run_websocket(port: int, request: bytes, frames: bytes) -> str:
    """A WebSocket handshake, frames, and the end of the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    probe = Probe(Case("websocket", None, request), reader, writer)
    try:
        async with asyncio.timeout(ANSWER_S):
            await probe.send(request)
            while b"\r\n\r\n" not in probe.data:
                if not await probe.more():
                    raise Broken(f"no answer to the handshake: {probe.data[:64].hex()}")
            await probe.send(frames)
            probe.finish()
            await probe.until_closed()
    except TimeoutError as late:
        raise Broken(f"no end within {ANSWER_S} s") from late
    finally:
        writer.transport.abort()
    if not probe.data.startswith(b"HTTP/1.1 101"):
        raise Broken(f"the handshake was refused: {probe.data[:64].hex()}")
    return "websocket"
