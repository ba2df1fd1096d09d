"""Records into runs, runs into packets: both twins, against the protocol's own encoders."""

from __future__ import annotations

from array import array

import pytest

from mqtt_proxy.mqtt.codec.encode import publish_head
from remoting.native.contracts import FULL, NOTHING, SPECIAL, PacketCore
from remoting.protocol.errors import CorruptRecord
from remoting.protocol.records.record import CLIENT_ID_KEY, CONTROL, FLAG_MQTT, MQTT_TOPIC_KEY
from tests.support.records import make_mqtt_record, make_record


def places(starts: bytes) -> list[int]:
    return list(memoryview(starts).cast("I"))


def plain(topic: bytes = b"a/b", body: bytes = b"x", qos: int = 1, **fields) -> bytes:
    """As a broker stores a publish: topic and client id."""
    properties = [(MQTT_TOPIC_KEY, topic), (CLIENT_ID_KEY, b"device")]
    return make_record(body, topic=b"a", properties=properties, flags=FLAG_MQTT | qos, **fields)


class Session:
    """What a run changes."""

    def __init__(self, core: PacketCore) -> None:
        self.core = core
        self.window: dict = {}
        self.unacked: dict = {}

    def run(self, blob, *, index=0, portion=100, qos=1, level=4, free=100, budget=1 << 30, last_id=0, offset=0):
        starts = self.core.starts_of(blob)
        return self.core.write_run(
            blob, starts, index, portion, qos, level, free, budget, last_id, self.window, self.unacked, "source", offset
        )


def test_starts(core: PacketCore) -> None:
    one, two = plain(), plain(b"long/topic", b"y" * 100)
    assert core.starts_of(b"") == b""
    assert places(core.starts_of(one + two + one)) == [0, len(one), len(one) + len(two)]
    assert places(core.starts_of(memoryview(two))) == [0]
    assert core.pick(one + two + one, array("I", [len(one), 0]).tobytes()) == two + one


@pytest.mark.parametrize("blob", [b"x", bytes(80), plain()[:-8], plain() + b"\x01" * 8, (79).to_bytes(4, "little")])
def test_what_is_no_record_is_said(core: PacketCore, blob: bytes) -> None:
    with pytest.raises(CorruptRecord):
        core.starts_of(blob)
    with pytest.raises(CorruptRecord):
        core.split(blob, {1})


def test_split_takes_the_runs_of_wanted_queues(core: PacketCore) -> None:
    blob = b"".join([
        plain(dispatch=((7, 5), (1, 0))),
        plain(dispatch=((8, 0),)),
        plain(dispatch=((7, 6), (1, 2))),  # queue 1 has a gap here
        make_record(b"c", magic_type=CONTROL, dispatch=()),
        plain(dispatch=((7, 7), (4_000_000_000, 1 << 40))),
    ])  # fmt: skip
    at = places(core.starts_of(blob))
    found = [
        (queue, first, places(starts), size) for queue, first, starts, size in core.split(blob, {1, 7, 9, 4 * 10**9})
    ]
    size = len(plain(dispatch=((7, 5), (1, 0))))
    assert found == [
        (7, 5, [at[0], at[2], at[4]], 3 * size),
        (1, 0, [at[0]], size),
        (4_000_000_000, 1 << 40, [at[4]], size),
    ]
    assert core.split(blob, {9}) == core.split(b"", {1}) == core.split(blob, ()) == []


def test_split_of_many_queues_and_records(core: PacketCore) -> None:
    blob = b"".join([plain(dispatch=((index % 100 * 64, index // 100),)) for index in range(1_000)])
    found = {
        queue: (first, len(starts) // 4) for queue, first, starts, _ in core.split(blob, dict.fromkeys(range(9_999)))
    }
    assert found == {index * 64: (0, 10) for index in range(100)}


@pytest.mark.parametrize("level", [4, 5])
@pytest.mark.parametrize("size", [0, 1, 110, 120, 16_300, 16_400, 2_097_200])
@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("granted", [0, 1])
def test_packets_are_those_of_the_codec(core: PacketCore, level: int, size: int, published: int, granted: int) -> None:
    session = Session(core)
    blob = plain(b"some/topic", b"z" * size, published) * 2
    written = session.run(blob, qos=granted, level=level, last_id=9, offset=40)
    qos = min(published, granted)
    none = b"\x00" if level == 5 else b""
    head = publish_head(b"some/topic", size + len(none), qos, False)
    ids = [b"\x00\x0a", b"\x00\x0b"] if qos else [b"", b""]
    assert written[0] == b"".join([head + packet_id + none + b"z" * size for packet_id in ids])
    assert written[1:] == (2, 2 * qos, 2 * size, 9 + 2 * qos, NOTHING)
    assert session.window == ({10: ("source", 40), 11: ("source", 41)} if qos else {})
    assert session.unacked == ({40: None, 41: None} if qos else {})


def test_a_run_begins_anywhere_and_ends_where_requested(core: PacketCore) -> None:
    blob = b"".join([plain(body=b"%d" % number, qos=0) for number in range(5)])
    for index in range(6):
        for portion in range(7):
            packets, taken, *_ = Session(core).run(blob, index=index, portion=portion)
            assert taken == min(portion, 5 - index)
            assert [packets[at + 7 : at + 8] for at in range(0, len(packets), 8)] == [
                b"%d" % number for number in range(index, index + taken)
            ]


def test_what_there_is_no_room_for_waits(core: PacketCore) -> None:
    blob = plain(qos=0, body=b"xx") + plain(body=b"xx") * 2 + plain(qos=0)
    assert Session(core).run(blob, free=1)[1:] == (2, 1, 4, 1, FULL)
    assert Session(core).run(blob, free=0)[1:] == (1, 0, 2, 0, FULL)
    assert Session(core).run(blob, budget=3)[1:] == (2, 1, 4, 1, FULL)
    assert Session(core).run(blob, budget=0) == (b"", 0, 0, 0, 0, FULL)
    assert Session(core).run(blob, budget=7)[1:] == (4, 2, 7, 2, NOTHING)


def test_packet_ids_in_use_are_skipped(core: PacketCore) -> None:
    session = Session(core)
    session.window = {65_535: "old", 1: "old", 3: "old"}
    assert session.run(plain() * 2, last_id=65_534)[4] == 4
    assert list(session.window) == [65_535, 1, 3, 2, 4]


@pytest.mark.parametrize("special", [
    make_mqtt_record(b"t", b"x", magic_type=CONTROL),
    make_record(b"from RocketMQ"),
    make_record(b"x", properties=[(MQTT_TOPIC_KEY, b"t"), (b"priority", b"device")], flags=FLAG_MQTT),
    make_record(b"x", properties=[(MQTT_TOPIC_KEY, b"t"), (b"otherKey", b"device")], flags=FLAG_MQTT),
    make_record(b"x", properties=[(MQTT_TOPIC_KEY, b"t"), (CLIENT_ID_KEY, b"c"), (b"k", b"v")], flags=FLAG_MQTT),
    make_record(b"x", flags=FLAG_MQTT),
])  # fmt: skip
def test_what_is_not_plain_is_skipped(core: PacketCore, special: bytes) -> None:
    only_topic = make_mqtt_record(b"t", b"y", flags=FLAG_MQTT)
    assert Session(core).run(only_topic + special + only_topic)[1::4] == (1, SPECIAL)
    assert Session(core).run(special)[:2] == (b"", 0)
    assert Session(core).run(plain(qos=2), qos=2)[1::4] == (0, SPECIAL)
