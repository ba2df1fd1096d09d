"""The compiled twin's own dangers: sizes that contradict each other, and memory of larger blobs."""

from __future__ import annotations

import random
import struct

import pytest

from remoting.native import packets
from remoting.protocol.errors import CorruptRecord
from remoting.protocol.records.record import CLIENT_ID_KEY, FLAG_MQTT, HEADER, MQTT_TOPIC_KEY
from tests.support.records import make_record

pytestmark = pytest.mark.skipif(packets.choice.name != "compiled", reason=f"no compiled twin: {packets.choice.reason}")


def record(body: bytes = b"payload") -> bytes:
    properties = [(MQTT_TOPIC_KEY, b"a/b"), (CLIENT_ID_KEY, b"c")]
    return make_record(body, topic=b"a", properties=properties, flags=FLAG_MQTT | 1, dispatch=((1, 0), (2, 0)))


def write(core, blob: bytes):
    window: dict = {}
    starts = struct.pack("I", 0)
    return core.write_run(blob, starts, 0, 1, 1, 4, 8, 1 << 20, 0, window, {}, None, 0), window


def test_a_false_header_is_refused_or_harmless() -> None:
    """Any byte of header and lengths table changed: CorruptRecord, or the same as the pure twin."""
    pure, compiled, rng = packets.pure_core(), packets.compiled_core(), random.Random(7)
    good = record()
    for _ in range(20_000):
        blob = bytearray(good)
        for _ in range(rng.randint(1, 3)):
            blob[rng.randrange(HEADER.size + 48)] = rng.choice((0, 1, 2, 127, 128, 255, rng.randrange(256)))
        try:
            found = write(compiled, bytes(blob))
        except CorruptRecord:
            continue
        assert found == write(pure, bytes(blob)) or len(found[0][0]) <= 2 * len(good)
        for operation in (lambda core, b: core.starts_of(b), lambda core, b: core.split(b, {1, 2})):
            try:
                expected = operation(compiled, bytes(blob))
            except CorruptRecord:
                continue
            assert expected == operation(pure, bytes(blob))


def test_places_beyond_the_blob_are_refused() -> None:
    core, blob = packets.compiled_core(), record()
    for place in (len(blob), len(blob) + 1, len(blob) - 79, 0xFFFF_FFFF):
        starts = struct.pack("I", place)
        with pytest.raises(CorruptRecord):
            core.write_run(blob, starts, 0, 1, 1, 4, 8, 1 << 20, 0, {}, {}, None, 0)
        with pytest.raises(CorruptRecord):
            core.pick(blob, starts)
    assert core.write_run(blob, struct.pack("I", 0), 5, 1, 1, 4, 8, 1 << 20, 0, {}, {}, None, 0)[:2] == (b"", 0)
