"""RocketMQ's layouts: both twins give the same bytes for any record and any send, and the same refusals."""

from __future__ import annotations

import struct
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remoting.native import core as native
from remoting.native.contracts import Core
from remoting.protocol.errors import CorruptRecord, LocalMisuse, RemoteViolation
from remoting.protocol.records.image import check_image, image_views
from remoting.protocol.records.properties import decode_properties
from remoting.protocol.records.record import BATCH, FLAG_MQTT, FLAG_SYS_SHIFT, RecordView
from remoting.protocol.records.rocketmq_form import SentFields, decode_batch, sent_image, stored_message
from remoting.protocol.records.stored_message import iter_stored, offset_message_id
from tests.support.records import make_record

HOST = ("10.0.0.1", 10_911)
ORIGIN = ((b"MSG_REGION", b"DefaultRegion"), (b"TRACE_ON", b"true"), (b"CLUSTER", b"here"))
SPECIAL = frozenset({b"TRAN_MSG", b"REPLY_TO_CLIENT"})
BORN = b"0a00000200000539"


@pytest.fixture(params=["pure", "compiled"])
def core(request: pytest.FixtureRequest) -> Core:
    if request.param == "pure":
        return native.pure_core()
    if native.choice.name != "compiled":
        pytest.skip(f"no compiled twin: {native.choice.reason}")
    return native.compiled_core()


def cores() -> list[Core]:
    """The twins there are."""
    return [native.pure_core(), *([native.compiled_core()] if native.choice.name == "compiled" else [])]


NUMBERS = st.integers(-(2**33), 2**33).map(lambda number: b"%d" % number) | st.sampled_from([b"", b"-", b" 7", b"1_0"])
VALUES = st.binary(max_size=12)
PAIRS = st.lists(
    st.tuples(VALUES, VALUES)
    | st.tuples(st.sampled_from([b"__rmq.flag", b"__rmq.reconsume", b"__rmq.other", b"__rmq."]), NUMBERS)
    | st.tuples(st.just(b"__rmq.born"), st.sampled_from([BORN, BORN[:-1], BORN.upper(), b"x" * 16, b"00" * 20]))
    | st.tuples(
        st.sampled_from(
            [b"CLUSTER", b"TRACE_ON", b"INNER_MULTI_DISPATCH", b"mqttResponseTopic", b"mqttExpiry", b"TAGS"]
        ),
        NUMBERS | VALUES,
    )
    | st.tuples(st.just(b"long"), st.sampled_from([b"v" * 20_000, b"v" * 40_000])),
    max_size=5,
)


@st.composite
def records(draw: st.DrawFn) -> memoryview:
    """A message record with properties of every kind."""
    flags = draw(st.sampled_from([0, FLAG_MQTT, FLAG_MQTT | 2])) | draw(st.integers(0, 0xFFFF)) << FLAG_SYS_SHIFT
    pairs = draw(PAIRS)
    if sum(len(key) + len(value) for key, value in pairs) > 0xFFFF:
        pairs = pairs[:1]
    made = make_record(
        draw(st.binary(max_size=40)), topic=draw(st.sampled_from([b"t", b"t" * 127, b"t" * 128, b""])),
        properties=pairs,
        keys=draw(VALUES), tags=draw(st.sampled_from([b"", b"red", b"blue", b"\x01"])), flags=flags,
        position=draw(st.integers(0, 2**62)), born_ms=draw(st.integers(-(2**63), 2**63 - 1)), store_ms=7,
        dispatch=[(number, number) for number in range(draw(st.integers(0, 3)))],
    )  # fmt: skip
    return memoryview(made)


@settings(max_examples=300)
@given(
    st.lists(records(), max_size=4),
    st.none() | st.just(frozenset({b"red"})) | st.just(frozenset({b"red", b"blue"})),
    st.sampled_from([ORIGIN, (), ((b"CLUSTER", b"in\x01jected"),)]),
    st.sampled_from([HOST, ("::1", 9)]),
)
def test_stored_messages_of_both_twins_are_those_of_the_single_conversion(found, tags, origin, host) -> None:
    first = 1 << 40
    chosen = [(first + at, RecordView(one)) for at, one in enumerate(found)]
    wanted = [
        stored_message(view, 3, offset, host, origin) for offset, view in chosen if tags is None or view.tags in tags
    ]
    for core in cores():
        body, number, asks = core.stored(found, range(first, first + len(found)), 3, host, origin, tags)
        assert (body, number) == (b"".join(wanted), len(wanted)), core.name
        assert asks == any(
            key == b"mqttResponseTopic"
            for _offset, view in chosen
            if tags is None or view.tags in tags
            for key, _value in view.properties()
        )


def test_messages_of_a_pull_in_the_usual_form(core: Core) -> None:
    pairs = [
        (b"UNIQ_KEY", b"u"),
        (b"own", b"v"),
        (b"__rmq.born", BORN),
        (b"__rmq.flag", b"-7"),
        (b"__rmq.reconsume", b"2"),
    ]
    one = memoryview(make_record(b"x" * 100, properties=pairs, keys=b"k1 k2", tags=b"red", position=640))
    body, number, asks = core.stored([one, one], [5, 9], 1, HOST, ORIGIN, None)
    messages = list(iter_stored(body))
    assert (number, asks, [message.queue_offset for message in messages]) == (2, False, [5, 9])
    message = messages[0]
    assert (message.body, message.flag, message.reconsume_times) == (b"x" * 100, -7, 2)
    assert (message.born_host, message.store_host, message.position) == (("10.0.0.2", 1337), HOST, 640)
    assert message.properties == [(b"UNIQ_KEY", b"u"), (b"own", b"v"), (b"TAGS", b"red"), (b"KEYS", b"k1 k2"), *ORIGIN]


def test_batches_and_damage_are_not_converted(core: Core) -> None:
    one = memoryview(make_record())
    batch = memoryview(make_record(magic_type=BATCH, count=3, flags=0x100))
    assert core.stored([one, batch], range(2), 0, HOST, ORIGIN, None) is None
    assert core.stored([], range(0), 0, HOST, ORIGIN, None) == (b"", 0, False)
    with pytest.raises(CorruptRecord):
        core.stored([one[:-8]], range(1), 0, HOST, ORIGIN, None)


NAMES = st.sampled_from([b"KEYS", b"TAGS", b"UNIQ_KEY", b"own", b"TRAN_MSG", b"__rmq.flag", b"", b"WAIT"])
TEXTS = st.lists(
    st.tuples(NAMES, VALUES)
    .map(lambda pair: pair[0] + b"\x01" + pair[1] + b"\x02")
    | st.sampled_from([b"broken\x02", b"\x02", b"end\x01without", b"UNIQ_KEY\x01AC11000100002A9F4E5D\x02"]),
    max_size=5,
).map(b"".join)  # fmt: skip
FIELDS = st.builds(
    SentFields, topic=st.sampled_from([b"t", b"%RETRY%g"]), queue_index=st.integers(0, 0xFFFE),
    system_flag=st.integers(-(2**40), 2**40), born_ms=st.integers(-(2**63), 2**63 - 1), born_host=st.just(BORN),
    reconsume_times=st.sampled_from([0, 1, 300]),
)  # fmt: skip


def item(body: bytes, text: bytes, flag: int) -> bytes:
    """One message of a batch body."""
    return (
        struct.pack(">iiiii", 22 + len(body) + len(text), 0, 0, flag, len(body))
        + body
        + struct.pack(">h", len(text))
        + text
    )


class Sender:
    """What a twin asks for: unique keys by number, and images of special messages."""

    def __init__(self, fields: SentFields) -> None:
        self._fields = fields
        self._ids = count()
        self.specials: list[tuple[int, dict[bytes, bytes], bytes]] = []

    def unique(self) -> bytes:
        """The next unique key."""
        return b"id%d" % next(self._ids)

    def special(self, flag: int, properties: dict[bytes, bytes], body: bytes) -> tuple[bytes, bytes]:
        """As for any other message, but noted when it has to be special."""
        if not SPECIAL.isdisjoint(properties) or any(key.startswith(b"__rmq.") for key in properties):
            self.specials.append((flag, dict(properties), body))
        if b"UNIQ_KEY" not in properties:
            properties[b"UNIQ_KEY"] = self.unique()
        return sent_image(self._fields, flag, properties, body), properties[b"UNIQ_KEY"]


@settings(max_examples=300)
@given(
    st.lists(st.tuples(st.binary(max_size=30), TEXTS, st.integers(-(2**31), 2**31 - 1)), min_size=1, max_size=4), FIELDS
)
def test_sends_become_the_same_images_one_by_one_and_as_a_batch(messages, fields) -> None:
    expected = Sender(fields)
    parts = [expected.special(flag, dict(decode_properties(text)), body) for body, text, flag in messages]
    body = b"".join([item(*one) for one in messages])
    for core in cores():
        assert core.count_batch(body) == len(messages)
        sender = Sender(fields)
        made, unique = core.sent(body, None, 0, fields, SPECIAL, sender.special, sender.unique)
        assert (made, unique) == (b"".join([image for image, _key in parts]), parts[0][1]), core.name
        assert sender.specials == expected.specials
        assert len(image_views(made)) == len(messages)
        single = Sender(fields)
        alone = core.sent(
            messages[0][0], messages[0][1], messages[0][2], fields, SPECIAL, single.special, single.unique
        )
        assert alone == parts[0]


@given(st.lists(st.tuples(st.binary(max_size=9), st.just(b"a\x01b\x02"), st.just(1)), max_size=3), st.data())
def test_a_damaged_batch_is_refused_alike(messages, data) -> None:
    body = bytearray(b"".join([item(*one) for one in messages]))
    if body and data.draw(st.booleans()):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(body[: data.draw(st.integers(0, len(body)))])
    outcomes = []
    for core in cores():
        try:
            outcomes.append(core.count_batch(cut))
        except RemoteViolation as error:
            outcomes.append(error.reason)
    try:
        wanted = len(decode_batch(cut))
    except RemoteViolation as error:
        wanted = error.reason
    assert outcomes == [wanted] * len(outcomes)


def test_many_and_long_properties(core: Core) -> None:
    """More properties than are read at once, one name twice, and a text beyond the limit."""
    fields = SentFields(b"t", 0, 0, 1, BORN)
    sender = Sender(fields)
    for text in (
        b"".join([b"k%d\x01v\x02" % number for number in range(300)]),
        b"a\x011\x02b\x012\x02a\x013\x02",
        b"k\x01" + b"v" * 32_764 + b"\x02",
        b"k\x01" + b"v" * 40_000 + b"\x02",
    ):
        wanted = sent_image(fields, 0, {**dict(decode_properties(text)), b"UNIQ_KEY": b"u"}, b"x")
        made, unique = core.sent(b"x", text + b"UNIQ_KEY\x01u\x02", 0, fields, SPECIAL, sender.special, sender.unique)
        assert (made, unique) == (wanted, b"u")
        check_image(made, 0, 0)


def test_fields_that_do_not_fit_are_a_misuse(core: Core) -> None:
    for fields in (SentFields(b"t", 0, 0, 1 << 63, BORN), SentFields(b"t" * 70_000, 0, 0, 1, BORN)):
        sender = Sender(fields)
        with pytest.raises(LocalMisuse, match="longer than its field"):
            core.sent(b"", b"", 0, fields, SPECIAL, sender.special, sender.unique)


@given(st.lists(st.integers(0, 2**63 - 1), max_size=40), st.sampled_from([HOST, ("::1", 1)]))
def test_message_ids_are_those_made_one_by_one(positions, host) -> None:
    for core in cores():
        assert core.message_ids(host, positions) == ",".join([offset_message_id(host, one) for one in positions])
