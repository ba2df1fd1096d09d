"""The judge against a plain reading of every record, with the compiled gather and without."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.filtering import judge as judging
from remoting.filtering.judge import Judge, judge_of
from remoting.native.vectors import column
from remoting.protocol.bodies.pull_body import RowFilter, encode_row_filter
from remoting.protocol.errors import LocalMisuse, RemoteViolation
from remoting.protocol.records import image, record, topics
from remoting.protocol.records.record import RecordView


@pytest.fixture(params=["pure", "compiled"], autouse=True, scope="module")
def twin(request: pytest.FixtureRequest) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "pure":
            patch.setattr(judging, "core", None)
        elif judging.core is None:
            pytest.skip(f"no compiled twin: {judging.choice.reason}")
        yield request.param


def make(topic: str, *, tags: str = "", keys: str = "", born_ms: int = 7, mqtt: bool = True, magic: int = 0) -> bytes:
    """One record."""
    if mqtt:
        raw = image.encode_mqtt_image(topic.encode(), b"x", 1, born_ms, b"c")
    else:
        raw = image.encode_image(
            flags=0, queue_index=0, born_ms=born_ms, topic=topic.encode(), keys=keys.encode(),
            tags=tags.encode(), body=b"x", properties=[(b"a", b"5"), (b"a", topic.encode())],
        )  # fmt: skip
    entry = image.image_views(b"".join([raw]))[0]
    found = image.stamp(entry, epoch=1, position=0, store_ms=0, dispatch=[(1, 0)])
    return found if not magic else found[:4] + magic.to_bytes(4, "little") + found[8:]


def judged(row_filter: RowFilter, records: list[bytes]) -> list[bool]:
    starts = column([0, *accumulate(map(len, records))][:-1], "q")
    return Judge(row_filter).mask(b"".join(records), starts).tolist()


def test_topics() -> None:
    records = [make("a/1"), make("b/1"), make("a/2"), make("a", mqtt=False), make("a/1")]
    assert judged(RowFilter(mqtt=("a/+",)), records) == [True, False, True, False, True]
    assert judged(RowFilter(mqtt=("a/1", "b/#")), records) == [True, True, False, False, True]


def test_tags_are_compared_as_texts_too() -> None:
    """`Aa` and `BB` have the same hash."""
    records = [make("t", mqtt=False, tags=tag) for tag in ("Aa", "BB", "", "c")]
    assert judged(RowFilter(tags=("Aa", "c")), records) == [True, False, False, True]


def test_keys_times_and_sql_together() -> None:
    records = [make("t", mqtt=False, keys=key, born_ms=born) for key, born in (("k", 5), ("k", 9), ("l", 5), ("k", 4))]
    assert judged(RowFilter(keys=("k",), born_from_ms=5, born_until_ms=9), records) == [True, False, False, False]
    assert judged(RowFilter(keys=("k", "l"), sql="KEYS = 'l'"), records) == [False, False, True, False]
    assert judged(RowFilter(sql="a = 't' AND TAGS IS NULL"), records) == [True] * 4


def test_what_cannot_be_judged_is_kept() -> None:
    batch = make("t", mqtt=False, magic=record.BATCH)
    broken = bytearray(make("t", mqtt=False))
    broken[62:64] = b"\xff\xff"
    assert judged(RowFilter(keys=("none",)), [batch, bytes(broken), make("t", mqtt=False)]) == [True, True, False]
    assert judged(RowFilter(mqtt=("t/#",)), [batch]) == [False]
    assert judged(RowFilter(tags=("x",)), []) == []


def test_a_full_cache_of_topics_is_emptied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "TOPICS_REMEMBERED_MAX", 2)
    judge = Judge(RowFilter(mqtt=("a/#",)))
    for turn in range(5):
        raw = make(f"a/{turn}")
        assert judge.mask(raw, column([0], "q")).all()
    assert len(judge._known) <= 4


def test_judges_are_cached_by_their_bytes() -> None:
    encoded = encode_row_filter(RowFilter(mqtt=("a/#",)))
    assert judge_of(encoded) is judge_of(encoded)
    with pytest.raises(RemoteViolation):
        judge_of(b"?")
    for wrong in (RowFilter(mqtt=("a/#/b",)), RowFilter(sql="a >")):
        with pytest.raises(LocalMisuse):
            judge_of(encode_row_filter(wrong))


@given(
    st.lists(st.tuples(st.sampled_from(["a/1", "a/2/x", "b", "c/1"]), st.sampled_from(["", "k"]), st.integers(0, 3))),
    st.sampled_from([(), ("a/#",), ("+/1",)]),
    st.sampled_from([(), ("k",)]),
    st.none() | st.integers(0, 3),
)
def test_it_agrees_with_a_plain_reading(
    messages: list[tuple[str, str, int]], mqtt: tuple[str, ...], keys: tuple[str, ...], begin: int | None
) -> None:
    records = [make(topic, keys=key, born_ms=born, mqtt=not key) for topic, key, born in messages]
    views = [RecordView(raw) for raw in records]
    expected = [
        (not mqtt or (view.mqtt_topic is not None and any(topics.matches(one, view.mqtt_topic) for one in mqtt)))
        and (not keys or view.keys.decode() in keys)
        and (begin is None or view.born_ms >= begin)
        for view in views
    ]
    assert judged(RowFilter(mqtt=mqtt, keys=keys, born_from_ms=begin), records) == expected
