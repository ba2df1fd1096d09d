"""The compiled conversions' own dangers: reference counts, and memory that grows."""

from __future__ import annotations

import sys

import pytest

from remoting.native import core as native
from remoting.protocol.records.rocketmq_form import BatchMessage, SentFields, encode_batch
from tests.support.records import make_record

pytestmark = pytest.mark.skipif(native.choice.name != "compiled", reason=f"no compiled twin: {native.choice.reason}")


def test_reference_counts_are_balanced() -> None:
    """After ten thousand messages each way every shared value has as many references as before."""
    core = native.compiled_core()
    record = memoryview(make_record(properties=[(b"own", b"v")], tags=b"red"))
    host, origin, tags = ("10.0.0.1", 9), ((b"CLUSTER", b"here"),), frozenset({b"red"})
    fields = SentFields(b"t", 0, 0, 1, b"0" * 16)
    body, names, key = encode_batch([BatchMessage(b"x", [(b"own", b"v")])] * 100), frozenset({b"TRAN_MSG"}), b"unique"
    watched = (record, host, origin, tags, fields, body, names, key)

    def special(flag: int, properties: dict[bytes, bytes], body: bytes) -> tuple[bytes, bytes]:
        raise AssertionError("none is special")

    core.message_ids(host, [0])  # packed hosts are cached, with a reference to the first one of each value
    before = [sys.getrefcount(one) for one in watched]
    for _ in range(100):
        assert core.stored([record] * 100, range(100), 0, host, origin, tags)[1] == 100
        assert core.sent(body, None, 0, fields, names, special, lambda: key)[1] == key
        assert len(core.message_ids(host, range(100))) == 33 * 100 - 1
    assert [sys.getrefcount(one) for one in watched] == before


def test_large_bodies_are_copied_whole() -> None:
    core = native.compiled_core()
    body = bytes(range(256)) * 4_000
    record = memoryview(make_record(body))
    made = core.stored([record] * 3, range(3), 0, ("10.0.0.1", 9), (), None)
    assert made is not None
    assert made[0].count(body) == 3
    fields = SentFields(b"t", 0, 0, 1, b"0" * 16)
    images, _key = core.sent(body, b"", 0, fields, frozenset(), lambda *_parts: (b"", b""), lambda: b"u")
    assert body in images
