"""Damage to valid packets: bytes, lengths, flags, properties, order. The result may by chance be valid."""

from __future__ import annotations

import random

from tests.fuzz.mqtt_grammar import BAD_TEXTS
from tests.processes.wire import text

EDGES = (0, 1, 2, 0x7F, 0x80, 0xC0, 0xED, 0xFE, 0xFF)


def change_bytes(rng: random.Random, data: bytes) -> bytes:
    """Change one to four bytes."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        out[rng.randrange(len(out))] = rng.choice((*EDGES, rng.randrange(256)))
    return bytes(out)


def change_length(rng: random.Random, data: bytes) -> bytes:
    """Another remaining length: near, far, or longer than four bytes."""
    told = rng.choice((b"\0", b"\1", b"\x7f", b"\x80\1", b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff", b"\x80\x80\x80\x00"))
    if rng.random() < 0.5:
        told = bytes([(data[1] + rng.choice((-2, -1, 1, 2))) % 256])
    return data[:1] + told + data[2:]


def change_first(rng: random.Random, data: bytes) -> bytes:
    """Another type or other flags."""
    return bytes([data[0] ^ 1 << rng.randrange(8)]) + data[1:]


def insert(rng: random.Random, data: bytes) -> bytes:
    """Bytes that do not belong there, with the old length or the new one."""
    at = rng.randint(2, len(data)) if len(data) > 2 else len(data)
    more = rng.choice(
        (
            bytes([rng.choice(EDGES)]),
            text(rng.choice((*BAD_TEXTS, b"$SYS/x", b"$delayed/1/x"))),
            data[at : at + 4],
            bytes(rng.randrange(40)),
        )
    )
    out = data[:at] + more + data[at:]
    if rng.random() < 0.7 and len(out) < 128:
        out = out[:1] + bytes([len(out) - 2]) + out[2:]
    return out


def remove(rng: random.Random, data: bytes) -> bytes:
    """Some bytes fewer, with the old length or the new one."""
    at = rng.randrange(1, len(data))
    out = data[:at] + data[at + rng.randint(1, 4) :]
    if rng.random() < 0.7 and 2 <= len(out) < 128:
        out = out[:1] + bytes([len(out) - 2]) + out[2:]
    return out


ALL = (change_bytes, change_length, change_first, insert, remove)


def damaged(rng: random.Random, packets: list[bytes]) -> list[bytes]:
    """A session with one or two packets damaged, repeated, missing or out of order."""
    out = list(packets)
    for _ in range(rng.randint(1, 2)):
        at = rng.randrange(len(out))
        way = rng.random()
        if way < 0.8 and len(out[at]) > 1:
            out[at] = rng.choice(ALL)(rng, out[at])
        elif way < 0.9:
            out.insert(at, out[rng.randrange(len(out))])
        else:
            rng.shuffle(out)
    return out
