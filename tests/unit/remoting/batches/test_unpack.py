"""From batch records to messages: each at its own offset, and a clear error where that is not possible."""

from __future__ import annotations

import subprocess
import sys

import pytest

from remoting.batches import body, unpack
from remoting.batches.unpack import ArrowMissing, Unpacker, base_of, is_batch, row_position, split_position
from remoting.protocol.errors import CorruptRecord
from remoting.protocol.records.record import (
    CODEC_NONE,
    CODEC_ZSTD,
    FLAG_GROUP_OPEN,
    RecordView,
    check_record,
    header_of,
    tag_hash,
)
from tests.support.batches import make_batch_record, make_rows
from tests.support.records import make_record
from tests.support.tree import ROOT

ROWS = make_rows(10)


def batch(**fields: object) -> RecordView:
    return RecordView(make_batch_record(ROWS, position=4096, dispatch=[(7, 100), (9, 5)], **fields))  # type: ignore[arg-type]


def test_each_message_is_the_record_it_would_be_alone() -> None:
    view = batch(flags=FLAG_GROUP_OPEN | 1 << 20)
    for row, single in enumerate(Unpacker().records(view, 0, 10)):
        assert check_record(single.raw, 0, single.position) == single.total
        wanted = ROWS[row]
        assert (bytes(single.body), single.born_ms, single.keys, single.tags) == (
            wanted.body, wanted.born_ms, wanted.key, wanted.tag,
        )  # fmt: skip
        assert tuple(single.properties()) == wanted.properties
        assert single.dispatch() == [(7, 100 + row), (9, 5 + row)]
        assert (single.type, single.count, single.flags, single.topic) == (1, 1, 1 << 20, b"t")
        assert header_of(single).tag_hash == (tag_hash(b"even") if wanted.tag else 0)
        assert split_position(single.position) == (4096, row)


def test_a_position_identifies_the_row() -> None:
    assert row_position(4096, 0) == 4096
    for row in (0, 1, 65_535):
        assert split_position(row_position((1 << 47) - 8, row)) == ((1 << 47) - 8, row)
    assert row_position((1 << 47) - 8, 65_535) < 1 << 63, "still a signed 64-bit number for Java"


def test_a_queue_of_both_kinds_from_the_middle_to_the_middle() -> None:
    records = [
        RecordView(make_record(b"one", dispatch=[(7, 99)])),
        batch(),
        RecordView(make_record(b"two", dispatch=[(7, 110)])),
        RecordView(make_batch_record(ROWS[:1], codec=CODEC_ZSTD, dispatch=[(7, 111)])),
    ]
    unpacker = Unpacker()
    everything = list(unpacker.messages(records, 7, 99, 112))
    assert [offset for offset, _ in everything] == list(range(99, 112))
    assert [bytes(view.body) for _, view in everything] == [b"one", *[row.body for row in ROWS], b"two", b"body 0"]
    middle = list(unpacker.messages(records[1:3], 7, 104, 107))
    assert [(offset, bytes(view.body)) for offset, view in middle] == [
        (104, b"body 4"), (105, b"body 5"), (106, b"body 6"),
    ]  # fmt: skip
    assert list(unpacker.messages(records[1:], 7, 105, 105)) == []
    assert [offset for offset, _ in unpacker.messages(records[2:], 7, 110, 111)] == [110]


def test_a_batch_at_another_position_is_an_error() -> None:
    for begin in (99, 110):
        with pytest.raises(CorruptRecord, match="begins at offset 100"):
            list(Unpacker().messages([batch()], 7, begin, 200))
    with pytest.raises(CorruptRecord, match="not in queue 8"):
        base_of(batch(), 8)


def test_one_message_by_its_row() -> None:
    unpacker, plain = Unpacker(), RecordView(make_record(b"one"))
    found = unpacker.message(batch(), 3)
    assert found is not None
    assert bytes(found.body) == b"body 3"
    assert unpacker.message(batch(), 10) is None
    assert unpacker.message(plain, 0) is plain
    assert unpacker.message(plain, 1) is None
    assert not is_batch(plain)


def test_the_last_batches_are_kept_and_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = []
    real = body.decode
    monkeypatch.setattr(body, "decode", lambda *given: decoded.append(given) or real(*given))
    unpacker = Unpacker(decoded_bytes_max=1)
    views = [RecordView(make_batch_record(ROWS, position=at, codec=CODEC_NONE)) for at in (0, 8)]
    for view in (views[0], views[0], views[1], views[0]):
        assert unpacker.rows(view, 0, 10) == ROWS
    assert len(decoded) == 3, "read again at once it is still cached, after another one it is not"
    roomy = Unpacker()
    for view in (*views, *views):
        roomy.rows(view, 2, 3)
    assert len(decoded) == 5


def test_what_cannot_be_read_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CorruptRecord, match="format 2"):
        Unpacker().rows(batch(body_format=2), 0, 1)
    long = make_rows(1)
    long[0].key = b"k" * 70_000
    with pytest.raises(CorruptRecord, match=r"message 0 .* does not fit a record"):
        Unpacker().records(RecordView(make_batch_record(long)), 0, 1)
    monkeypatch.setitem(sys.modules, "remoting.batches.body", None)
    monkeypatch.delattr("remoting.batches.body")
    with pytest.raises(ArrowMissing, match=r"pip install 'pyarrow>=18'"):
        unpack.Unpacker().rows(batch_without_arrow(), 0, 1)


def batch_without_arrow() -> RecordView:
    return RecordView(make_batch_record(b"whatever", count=3, codec=CODEC_NONE))


@pytest.mark.parametrize("module", ["broker.app", "mqtt_proxy.app", "controller.app", "remoting.client.batching"])
def test_pyarrow_is_not_loaded_before_the_first_batch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=ROOT).returncode == 0
