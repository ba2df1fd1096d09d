"""The pure twin: splits the records of a blob into runs, and turns runs into PUBLISH packets.

Invariant: a cursor's offset and a window's id advance together; records that are not plain are left to the caller.
Thread rule: loop thread.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Collection
from typing import Any

from remoting.native.contracts import FULL, NOTHING, SPECIAL, Buffer, PushedRun, Written
from remoting.protocol.errors import CorruptRecord
from remoting.protocol.records.record import (
    CLIENT_ID_KEY,
    DISPATCH_SIZE,
    FLAG_MQTT,
    HEADER,
    HEADER_SIZE,
    MESSAGE,
    dispatch_fields,
    publish_fields,
)

PACKET_ID_MAX = 65_535
LEVEL_5 = 5
_TWO_PAIRS = struct.Struct("<4H")


def starts_of(blob: Buffer) -> bytes:
    """Return the starts of records that lie back to back."""
    starts = array("I")
    at, end = 0, len(blob)
    while at < end:
        total = _total(blob, at)
        starts.append(at)
        at += total
    return starts.tobytes()


def _total(blob: Buffer, at: int) -> int:
    """Return the size of the record at `at`. Raises CorruptRecord when there cannot be one."""
    total = int.from_bytes(blob[at : at + 4], "little")
    if total < HEADER_SIZE or total > len(blob) - at:
        raise CorruptRecord(f"a record of {total} bytes at {at} of {len(blob)}")
    return total


def split(blob: Buffer, wanted: Collection[int]) -> list[PushedRun]:
    """Return the first gapless run of each wanted queue, in order of appearance."""
    runs: dict[int, tuple[int, array[int], list[int]]] = {}
    at, end = 0, len(blob)
    while at < end:
        total = _total(blob, at)
        for queue_id, offset in dispatch_fields(blob, at):
            if queue_id not in wanted:
                continue
            run = runs.get(queue_id)
            if run is None:
                runs[queue_id] = (offset, array("I", (at,)), [total])
            elif offset == run[0] + len(run[1]):
                run[1].append(at)
                run[2].append(total)
        at += total
    return [(queue_id, first, starts.tobytes(), sum(sizes)) for queue_id, (first, starts, sizes) in runs.items()]


def pick(blob: Buffer, starts: bytes) -> bytes:
    """Return the records at these starts, back to back."""
    return b"".join([blob[at : at + _total(blob, at)] for at in memoryview(starts).cast("I")])


def write_run(
    blob: Buffer,
    starts: bytes,
    index: int,
    portion: int,
    qos_max: int,
    level: int,
    free: int,
    budget: int,
    last_id: int,
    window: dict[int, object],
    unacked: dict[int, None],
    source: Any,
    offset: int,
) -> Written:
    """Return plain records as PUBLISH packets, see `contracts.PacketCore`."""
    out: list[Buffer] = []
    spent = with_qos = 0
    reason = NOTHING
    first = index
    places = memoryview(starts).cast("I")
    for index in range(first, min(first + portion, len(places))):
        at = places[index]
        header = HEADER.unpack_from(blob, at)
        qos = min(header[9] & 3, qos_max)
        if qos > 1 or not _is_plain(blob, at, header):
            reason = SPECIAL
            break
        if spent >= budget or (qos and with_qos >= free):
            reason = FULL
            break
        topic, body, _flags, _born_ms, _total = publish_fields(blob, at)
        spent += len(body)
        out.append(_head(topic, len(body), qos, level))
        if qos:
            last_id = _next_id(last_id, window)
            window[last_id] = (source, offset + index - first)
            unacked[offset + index - first] = None
            with_qos += 1
            out.append(last_id.to_bytes(2, "big"))
        if level == LEVEL_5:
            out.append(b"\x00")
        out.append(body)  # type: ignore[arg-type]  # a slice of a view is a view
    else:
        index = min(first + portion, len(places))
    return b"".join(out), index - first, with_qos, spent, last_id, reason


def _is_plain(blob: Buffer, at: int, header: tuple[int, ...]) -> bool:
    """Whether the record's only properties are the MQTT topic and, optionally after it, the client id."""
    if header[1] != MESSAGE or not header[9] & FLAG_MQTT or not 1 <= header[12] <= 2:
        return False
    if header[12] == 1:
        return True
    lengths_at = at + HEADER_SIZE + DISPATCH_SIZE * header[11]
    topic_key, topic, key_size, _ = _TWO_PAIRS.unpack_from(blob, lengths_at)
    key_at = lengths_at + _TWO_PAIRS.size + header[13] + header[14] + header[15] + topic_key + topic
    return bytes(blob[key_at : key_at + key_size]) == CLIENT_ID_KEY


def _head(topic: bytes, body_size: int, qos: int, level: int) -> bytes:
    """Return the packet up to its packet id or, with QoS 0, up to the properties' length."""
    size = 2 + len(topic) + 2 * qos + (level == LEVEL_5) + body_size
    return bytes((0x30 | qos << 1,)) + _length(size) + len(topic).to_bytes(2, "big") + topic


def _length(length: int) -> bytes:
    """Return the remaining length of a packet, seven bits per byte, the low ones first [MQTT 2.2.3]."""
    said = bytearray()
    while length > 0x7F:
        said.append(length & 0x7F | 0x80)
        length >>= 7
    said.append(length)
    return bytes(said)


def _next_id(last_id: int, window: dict[int, object]) -> int:
    while True:
        last_id = last_id + 1 if last_id < PACKET_ID_MAX else 1
        if last_id not in window:
            return last_id
