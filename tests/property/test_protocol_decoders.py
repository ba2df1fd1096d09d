"""Every decoder of the protocol, fed valid bytes that were damaged: they raise nothing but RemoteViolation.

Damage keeps most of a valid encoding, so it reaches deeper than random bytes do. Each decoder has its sample here; a
public decoder of the room that is missing from the table fails the last test.
"""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import remoting.protocol
from remoting.protocol.bodies import (
    append_body,
    controller_body,
    follow_body,
    packed,
    pull_body,
    session_body,
    sink_body,
)
from remoting.protocol.errors import RemoteViolation
from remoting.protocol.frames import fastjson, frame
from remoting.protocol.frames.commands import SERIALIZE_JSON, SERIALIZE_ROCKETMQ, Command
from remoting.protocol.records import image, names, properties, record, rocketmq_form, stored_message
from tests.support.records import make_record

RECORD = make_record(
    keys=b"k",
    tags=b"g",
    properties=[(record.MQTT_TOPIC_KEY, b"t")],
    flags=record.FLAG_MQTT,
    dispatch=[(1, 2), (3, 4)],
)
ENTRY = image.encode_mqtt_image(b"a/b", b"payload", 1, 2, b"client")
ROW_FILTER = pull_body.encode_row_filter(pull_body.RowFilter(mqtt=("a/#",), sql="a = 1", born_from_ms=1))
RESULT = pull_body.QueueRecords(1, 0, 0, 2, 0, 2, [RECORD, RECORD])
BINARY = Command(10, remark="r", fields={"k": "v"}, body=b"b", serialize_type=SERIALIZE_ROCKETMQ)
PLAIN = Command(10, remark="r", fields={"k": "v"}, body=b"b")
STORED = stored_message.StoredMessage(
    b"t", b"body", 0, 1, 2, 3, 4, ("10.0.0.1", 1), ("10.0.0.2", 2), properties=[(b"k", b"v")]
)


def read_everything(view: record.RecordView) -> tuple[object, ...]:
    """Touch every lazy part of a record."""
    return (view.dispatch(), view.properties(), view.mqtt_topic, view.topic, view.keys, view.tags, view.meta, view.body)


def signed(raw: bytes) -> int:
    """The first eight bytes as a position: a number below 0 is a requested start."""
    return int.from_bytes(raw[:8].ljust(8, b"\0"), "little", signed=True)


Case = tuple[str, bytes, Callable[[bytes], object]]
CASES: list[Case] = [
    (
        "frame.FrameDecoder",
        frame.encode_frame(PLAIN) + frame.encode_frame(BINARY),
        lambda raw: frame.FrameDecoder().feed(raw),
    ),
    ("header.decode_header", frame.encode_header(PLAIN), lambda raw: frame.decode_header(SERIALIZE_JSON, raw)),
    ("header.decode_header", frame.encode_header(BINARY), lambda raw: frame.decode_header(SERIALIZE_ROCKETMQ, raw)),
    ("record.check_record", RECORD, lambda raw: record.check_record(raw, 0, 0)),
    ("record.iter_records", RECORD * 2, lambda raw: [read_everything(view) for view in record.iter_records(raw)]),
    ("record.publish_fields", RECORD, lambda raw: record.publish_fields(raw, 0)),
    ("image.image_views", b"".join([ENTRY, ENTRY]), image.image_views),
    (
        "append_body.decode_unwanted",
        append_body.encode_append_reply(9, [(1, 2)] * 9, [True] * 9),
        append_body.decode_unwanted,
    ),
    ("append_body.decode_append_reply", append_body.encode_append_reply(9, [(1, 2)]), append_body.decode_append_reply),
    (
        "pull_body.decode_filtered_pull",
        pull_body.encode_filtered_pull(1, 2, 3, 4, ROW_FILTER),
        pull_body.decode_filtered_pull,
    ),
    ("pull_body.decode_row_filter", ROW_FILTER, pull_body.decode_row_filter),
    (
        "pull_body.decode_filtered_reply",
        pull_body.encode_filtered_reply(
            pull_body.PulledRange(0, 0, 2, 0, 2, 1, memoryview(bytes(4)), memoryview(RECORD), memoryview(bytes(4)))
        ),
        pull_body.decode_filtered_reply,
    ),
    ("pull_body.decode_multi_pull", pull_body.encode_multi_pull([(1, 2, 3, 4)]), pull_body.decode_multi_pull),
    (
        "pull_body.decode_multi_pull_reply",
        pull_body.encode_multi_pull_reply([RESULT]),
        pull_body.decode_multi_pull_reply,
    ),
    ("pull_body.decode_range_pull", pull_body.encode_range_pull(1, 2, 3, 4), pull_body.decode_range_pull),
    ("pull_body.decode_range_pull_reply", pull_body.encode_range_pull_reply(RESULT), pull_body.decode_range_pull_reply),
    ("pull_body.decode_records_at", pull_body.encode_records_at([1, 2]), pull_body.decode_records_at),
    ("follow_body.decode_follow", follow_body.encode_follow([1], [2]), follow_body.decode_follow),
    ("follow_body.decode_follow_reply", follow_body.encode_follow_reply([1]), follow_body.decode_follow_reply),
    ("follow_body.decode_notify", follow_body.encode_notify([(1, 2)]), follow_body.decode_notify),
    ("session_body.decode_offsets", session_body.encode_offsets([(b"client", 1, 2)]), session_body.decode_offsets),
    (
        "packed.decode",
        session_body.encode(session_body.SubscribeRequest("c", 1, durable=True, filters=[("a/+", 1)])),
        lambda raw: packed.decode(session_body.SubscribeRequest, raw),
    ),
    (
        "packed.decode",
        sink_body.encode(sink_body.CommitBatch("s", 1, [sink_body.StageHandle(0, 1, 2)])),
        lambda raw: packed.decode(sink_body.CommitBatch, raw),
    ),
    (
        "packed.decode_json",
        pull_body.encode_bounds_request(pull_body.QueueBoundsRequest(["t"])),
        lambda raw: packed.decode_json(pull_body.QueueBoundsRequest, raw),
    ),
    (
        "pull_body.decode_bounds_request",
        pull_body.encode_bounds_request(pull_body.QueueBoundsRequest(["t"], known={"t": {"0": 1}})),
        pull_body.decode_bounds_request,
    ),
    (
        "pull_body.decode_bounds_reply",
        pull_body.encode_bounds_reply(pull_body.QueueBoundsReply("b", 1, 2, [], pull_body.LightBounds(1, 0, 2))),
        pull_body.decode_bounds_reply,
    ),
    ("session_body.unpack_before", b"\0" * 7 + b"\x80", lambda raw: session_body.unpack_before(signed(raw))),
    (
        "session_body.decode_given",
        session_body.encode_given([(1, 2, RECORD), (3, 4, RECORD)]),
        session_body.decode_given,
    ),
    ("stored_message.decode_stored", stored_message.encode_stored(STORED), stored_message.decode_stored),
    (
        "stored_message.iter_stored",
        stored_message.encode_stored(STORED),
        lambda raw: list(stored_message.iter_stored(raw)),
    ),
    (
        "rocketmq_form.decode_batch",
        rocketmq_form.encode_batch([rocketmq_form.BatchMessage(b"b", [(b"k", b"v")])]),
        rocketmq_form.decode_batch,
    ),
    ("properties.decode_properties", b"k\1v\2", properties.decode_properties),
    ("fastjson.loads", b"{a:{{'q':0}:[1,-2.5e3,\"x\"]},2:null}", fastjson.loads),
    (
        "controller_body.decode_body",
        b"{\"brokerAddrTable\":{},clusterAddrTable:{'C':[]}}",
        lambda raw: controller_body.decode_body(raw, controller_body.ClusterInfo),
    ),
    ("names.unescape", b"a%2Fb", names.unescape),
    ("controller_body.decode_names", b'["broker-a", "broker-b"]', controller_body.decode_names),
    ("names.light_queue_topic", b"%LMQ%a%2Fb", names.light_queue_topic),
    ("message_id.unpack_host", bytes(8), stored_message.unpack_host),
]

EDITS = st.lists(
    st.tuples(
        st.sampled_from(("set", "insert", "delete", "cut", "grow")),
        st.integers(0, 1000),
        st.sampled_from((b"\0", b"\xff", b"\x7f", b"\x80", b"\1", b"\xff\xff\xff\xff", b"\0\0\0\x80", b"{", b"'"))
        | st.binary(min_size=1, max_size=4),
    ),
    min_size=1,
    max_size=5,
)


def damaged(raw: bytes, edits: list[tuple[str, int, bytes]]) -> bytes:
    """Return `raw` with the edits applied one after the other."""
    for kind, number, piece in edits:
        at = number % (len(raw) + 1)
        if kind == "set":
            raw = raw[:at] + piece + raw[at + len(piece) :]
        elif kind == "insert":
            raw = raw[:at] + piece + raw[at:]
        elif kind == "delete":
            raw = raw[:at] + raw[at + len(piece) :]
        elif kind == "cut":
            raw = raw[:at]
        else:
            raw += piece
    return raw


@pytest.mark.parametrize(
    ("name", "sample", "decode"), CASES, ids=[f"{index}-{case[0]}" for index, case in enumerate(CASES)]
)
def test_damaged_bytes_only_violate(name, sample, decode):
    decode(sample)

    @settings(max_examples=150, deadline=None)
    @given(edits=EDITS)
    def check(edits):
        with contextlib.suppress(RemoteViolation):
            decode(damaged(sample, edits))

    check()


def test_no_decoder_is_missing_from_the_table():
    covered = {name for name, _, _ in CASES}
    prefixes = ("decode", "check_", "iter_", "scan_", "parse_", "unpack_", "unescape")
    for module in pkgutil.iter_modules(remoting.protocol.__path__):
        for name, value in vars(importlib.import_module(f"remoting.protocol.{module.name}")).items():
            if name.startswith(prefixes) and getattr(value, "__module__", "") == f"remoting.protocol.{module.name}":
                assert f"{module.name}.{name}" in covered, f"add a sample for {module.name}.{name}"
