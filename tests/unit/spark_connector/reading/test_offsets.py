"""The canonical JSON form of a stream's position."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_connector.errors import OptionError
from spark_connector.queues import QueueKey
from spark_connector.reading.offsets import (
    FORMS_REMEMBERED,
    Lives,
    OffsetMemory,
    StreamOffset,
    begun_anew,
    from_json,
    to_json,
    to_kafka_json,
    total_behind,
)

keys = st.builds(QueueKey, st.text(max_size=5), st.text(max_size=5), st.integers(0, 20))
positions = st.dictionaries(keys, st.integers(0, 2**60), max_size=8)


lives = st.builds(
    Lives,
    st.dictionaries(st.text(max_size=5), st.text("0123456789abcdef", min_size=1, max_size=4), max_size=3),
    st.dictionaries(
        st.text(max_size=5), st.dictionaries(st.text(max_size=5), st.integers(0, 2**32), min_size=1, max_size=2)
    ),
)


@given(positions, st.none() | positions, st.booleans(), lives)
def test_round_trip_through_text(
    found: dict[QueueKey, int], origin: dict[QueueKey, int] | None, initial: bool, lives: Lives
) -> None:
    offset = StreamOffset(found, origin, initial, lives=lives, anew=len(found))
    assert from_json(json.loads(json.dumps(to_json(offset)))) == offset


@given(positions)
def test_equal_positions_give_equal_text(found: dict[QueueKey, int]) -> None:
    backwards = dict(reversed(list(found.items())))
    text = json.dumps(to_json(StreamOffset(found)))
    assert text == json.dumps(to_json(StreamOffset(backwards)))
    assert text == json.dumps(json.loads(text)), "what the JVM returns is written as it was"


@pytest.mark.parametrize(
    "wrong", [{}, {"v": 2, "q": {}}, {"v": 1}, {"v": 1, "q": {"t": 5}}, {"v": 1, "q": {"t": {"b": {"x": 1}}}}]
)
def test_foreign_checkpoints_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(OptionError, match="checkpoint"):
        from_json(wrong)


def one_group(found: dict[QueueKey, int]) -> dict[QueueKey, int]:
    """The positions with every topic at one broker group, as Kafka's form has them."""
    return {QueueKey(key.topic, f"b:{key.topic}", key.queue): position for key, position in found.items()}


names = st.text("ab%-", min_size=1, max_size=3)
named = st.dictionaries(st.builds(QueueKey, names, names, st.integers(0, 20)), st.integers(0, 2**60), max_size=8)


@given(named, st.none() | named, st.booleans(), st.none() | named, st.integers(0, 9))
def test_round_trip_in_kafkas_form(
    found: dict[QueueKey, int],
    origin: dict[QueueKey, int] | None,
    initial: bool,
    waits: dict[QueueKey, int] | None,
    lost: int,
) -> None:
    offset = StreamOffset(
        one_group(found),
        None if origin is None else one_group(origin),
        initial,
        None if not waits else one_group(waits),
        lost,
        Lives({"b:1": "9f"} if found else {}, {key.topic: {key.broker: 7} for key in one_group(found)}),
    )
    form = to_kafka_json(offset)
    text = json.dumps(form)
    assert from_json(json.loads(text)) == offset
    assert text == json.dumps(json.loads(text))
    backwards = replace(offset, positions=dict(reversed(list(offset.positions.items()))), waiting_ms=waits)
    if not waits:
        assert text == json.dumps(to_kafka_json(backwards))
    assert all(queue.isdigit() and isinstance(at, int) for queues in form.values() for queue, at in queues.items())
    topics = {name: queues for name, queues in form.items() if not name.startswith(":")}
    assert {(topic, int(queue)): at for topic, queues in topics.items() for queue, at in queues.items()} == {
        (key.topic, key.queue): at for key, at in offset.positions.items()
    }


def test_a_checkpoint_of_kafkas_own_source_is_refused_in_its_own_words() -> None:
    with pytest.raises(OptionError, match=r"one of Kafka's source .* start with a new checkpoint"):
        from_json({"orders": {"0": 5, "1": 7}})


@pytest.mark.parametrize("wrong", [{":v1": {}, ":at:b:t": {}, "t": 5}, {":v1": {}, ":at:b:t": {}, "t": {"x": 1}}])
def test_a_damaged_kafka_form_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(OptionError, match="checkpoint's offset is damaged"):
        from_json(wrong)


def test_a_memory_of_kafkas_form_goes_on_from_a_checkpoint_of_ours_and_back() -> None:
    one, other = ({QueueKey("t", "b", queue): at + queue for queue in range(4)} for at in (5, 6))
    kafka, own = OffsetMemory(kafka=True), OffsetMemory()
    before = own.to_json(StreamOffset(one))
    assert kafka.from_json(json.loads(json.dumps(before))).positions == one
    form = kafka.to_json(StreamOffset(other))
    assert form == {":v1": {}, ":at:b:t": {}, "t": {"0": 6, "1": 7, "2": 8, "3": 9}}
    assert own.from_json(form).positions == other
    assert own.to_json(StreamOffset(other | {QueueKey("t", "b", 0): 9})) == {
        "v": 1,
        "q": {"t": {"b": {"0": 9, "1": 7, "2": 8, "3": 9}}},
    }


def test_total_behind() -> None:
    key, other = QueueKey("t", "b", 0), QueueKey("t", "b", 1)
    assert total_behind({key: 3}, {key: 10, other: 5}, [key, other]) == 12


def test_a_memory_reads_each_form_once() -> None:
    memory = OffsetMemory()
    one = StreamOffset({QueueKey("t", "b", 0): 5}, initial=True)
    form = memory.to_json(one)
    assert memory.from_json(json.loads(json.dumps(form))) is one
    others = [memory.from_json({"v": 1, "q": {"t": {"b": {"0": n}}}}) for n in range(FORMS_REMEMBERED)]
    assert memory.from_json({"v": 1, "q": {"t": {"b": {"0": 0}}}}) is others[0]
    again = memory.from_json(form)
    assert again == one
    assert again is not one


@given(positions, positions)
def test_a_memory_writes_what_the_function_writes(one: dict[QueueKey, int], other: dict[QueueKey, int]) -> None:
    memory = OffsetMemory()
    for offset in (
        StreamOffset(one, origin=other),
        StreamOffset(one),
        StreamOffset(other, initial=True),
        StreamOffset(one),
    ):
        assert json.dumps(memory.to_json(offset)) == json.dumps(to_json(offset))


@given(st.lists(st.dictionaries(st.integers(0, 39), st.integers(0, 9), max_size=6), max_size=8))
def test_little_that_moved_is_written_as_everything_is(steps: list[dict[int, int]]) -> None:
    """Forms returned before stay what they were."""
    memory = OffsetMemory()
    now = {QueueKey(f"t{n // 8}", f"b{n // 4 % 2}", n % 12): n for n in range(40)}
    keys_by_number = list(now)
    written = []
    for step in steps:
        now = now | {keys_by_number[number]: position for number, position in step.items()}
        offset = StreamOffset(now)
        written.append((json.dumps(memory.to_json(offset)), memory.to_json(offset), offset))
    for text, form, offset in written:
        assert text == json.dumps(form) == json.dumps(to_json(offset))


def test_what_is_known_of_two_lives() -> None:
    """Only what both know is compared."""
    key, elsewhere = QueueKey("t", "a", 0), QueueKey("t", "b", 1)
    before = Lives({"a": "1"}, {"t": {"a": 5, "b": 6}})
    both = {key: 3, elsewhere: 3}
    assert begun_anew(both, before, before) == {}
    assert begun_anew(both, Lives(), before) == begun_anew(both, before, Lives()) == {}
    assert list(begun_anew(both, before, Lives({"a": "1"}, {"t": {"a": 5, "b": 7}}))) == [elsewhere]
    assert list(begun_anew(both, before, Lives({"a": "2"}))) == [key]
    assert before.then(Lives({"b": "3"}, {"t": {"b": 7}, "u": {"a": 9}})) == Lives(
        {"a": "1", "b": "3"}, {"t": {"a": 5, "b": 7}, "u": {"a": 9}}
    )
