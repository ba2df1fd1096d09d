"""The compiled walk's own dangers: manual reference counts, and whether it does the work at all."""

from __future__ import annotations

import sys

import pyarrow as pa
import pytest

from remoting.native import core as native
from remoting.native.contracts import Times, Way
from remoting.native.reference.delays import DueSpan
from remoting.protocol.records.image import QUEUE_INDEX_ANY, encode_mqtt_image
from spark_connector.writing.columns import SinkColumns
from spark_connector.writing.row_encoder import Defaults, encode_rows

pytestmark = pytest.mark.skipif(native.choice.name != "compiled", reason=f"no compiled twin: {native.choice.reason}")


def test_reference_counts_are_balanced() -> None:
    """After a hundred thousand messages each shared value has as many references as before."""
    core, queues = native.compiled_core(), (1, 2)
    way = Way(
        {b"a": queues},
        lambda _topic: queues,
        {},
        lambda _value: (),
        lambda _topic: ((queues,), 0),
        lambda *_: None,
        ValueError,
        100,
        100,
    )
    body = b"".join([encode_mqtt_image(b"a", b"body", 1, 1 << 50, b"client")] * 1_000)
    watched = (queues, body, way)
    before = [sys.getrefcount(one) for one in watched]
    for _ in range(100):
        assert len(core.placed(body, way, None)[0]) == 1_000
        assert len(core.hidden(body, 0)) == len(body)
        assert core.topics(body) == {b"a"}
    assert [sys.getrefcount(one) for one in watched] == before


def test_errors_of_the_placement_are_raised() -> None:
    """A refusal in the middle leaves no turn counted."""
    core = native.compiled_core()

    def missed(topic: bytes) -> tuple[int, ...]:
        raise PermissionError(topic)

    turned: list[object] = []
    way = Way(
        {},
        missed,
        {},
        lambda _value: (),
        lambda _topic: (((1,),), 0),
        lambda *one: turned.append(one),
        ValueError,
        100,
        100,
    )
    with pytest.raises(PermissionError):
        core.placed(encode_mqtt_image(b"a", b"", 1, 1, b""), way, None)
    assert turned == []


def test_rows_of_sparks_sink_are_accepted() -> None:
    """Rows with keys, tags, properties (as Kafka's headers) and queues, of both kinds of topic; no delayed ones."""
    columns = {
        "mqttTopic": pa.array([None, "a/b", None, None]),
        "topic": pa.array(["t", None, "t", "t"]),
        "body": pa.array([b"x", b"", None, b"y"]),
        "key": pa.array(["k", "k", None, ""]),
        "tag": pa.array(["T", "T", None, ""]),
        "contentType": pa.array(["text/plain"] * 4),
        "queue": pa.array([1, QUEUE_INDEX_ANY, QUEUE_INDEX_ANY, 0], pa.uint16()),
    }
    headers = [[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], None, [], [{"key": "i", "value": b"2"}]]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    batch = pa.record_batch([*columns.values(), pa.array(headers, kind)], [*columns, "headers"])
    names = {name: name for name in batch.schema.names}
    way = Way(
        {b"a/b": (9,)},
        lambda _: (),
        {},
        lambda _: (),
        lambda _: (((5,), (6,)), 1),
        lambda *_: None,
        ValueError,
        100,
        100,
    )
    picked = SinkColumns(names, None, None, None).pick(batch)
    nowhere = Times({}, lambda _start: DueSpan((3,)), lambda: (0, 0, 0, 0, 0))
    for delay, wanted in ((None, [(6,), (9,), (6,), (5,)]), (5, [None] * 4)):
        rows = encode_rows(
            {**picked, "delay": pa.array([delay] * 4, pa.int64())}, 4, Defaults(1, retain=False, born_ms=1)
        )
        body = bytes(rows.data)
        queues, odd, _images, _dues = native.compiled_core().placed(body, way, nowhere)
        assert (queues, len(odd)) == (wanted, wanted.count(None))
        assert native.compiled_core().topics(body) == {b"t", b"a/b"}
