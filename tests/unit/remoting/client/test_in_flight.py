"""The window against a naive model: a list of items and their states."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remoting.client.in_flight import FlightFrame, InFlight, WindowLimits
from remoting.protocol.errors import LocalMisuse

LIMITS = WindowLimits(frame_items_max=3, frame_bytes_max=100)


def filled(*sizes: int, limits: WindowLimits = LIMITS) -> InFlight[int]:
    window: InFlight[int] = InFlight(limits)
    for number, size in enumerate(sizes):
        window.add(number, size)
    return window


def test_a_frame_is_sent_when_it_is_full_or_due() -> None:
    window = filled(10, 10)
    assert (window.take(), window.is_gathering, window.waiting_bytes) == (None, True, 20)
    window.press()
    window.add(2, 10)
    frame = window.take()
    assert frame is not None
    assert (frame.items, frame.size, frame.attempts, window.is_gathering) == ([0, 1, 2], 30, 1, False)
    window.stored(frame)
    assert (window.is_idle, window.waiting_bytes, window.take()) == (True, 0, None)


def test_a_larger_item_is_sent_alone() -> None:
    window = filled(10, 500, 10, limits=WindowLimits(frame_items_max=9, frame_bytes_max=100, frames_in_flight_max=9))
    window.press()
    assert [frame.items for frame in iter(window.take, None) if frame] == [[0], [1], [2]]


def test_adding_reports_whether_a_frame_was_closed() -> None:
    """By the item that fills it, and by one that does not fit."""
    window: InFlight[int] = InFlight(LIMITS)
    assert [window.add(number, size) for number, size in enumerate((60, 60, 40, 1, 100, 1))] == [
        False, True, True, False, True, False,
    ]  # fmt: skip


def test_nothing_may_be_due() -> None:
    """A flush with nothing gathered has no effect on the next item."""
    window = filled()
    window.press()
    window.add(0, 1)
    assert window.take() is None


def test_no_more_frames_than_the_limit_are_in_flight() -> None:
    window = filled(100, 100, 100, limits=WindowLimits(frame_items_max=1, frame_bytes_max=100, frames_in_flight_max=2))
    first, second = window.take(), window.take()
    assert first is not None
    assert second is not None
    assert window.take() is None
    window.stored(second)
    third = window.take()
    assert third is not None
    assert list(window.waiting()) == [0, 2]


def test_a_repeated_frame_goes_before_all_that_were_not_taken() -> None:
    window = filled(100, 100, 100, limits=WindowLimits(frame_items_max=1, frame_bytes_max=100, attempts_max=2))
    first = window.take()
    assert first is not None
    assert window.may_repeat(first)
    window.repeat(first)
    assert (window.take(), first.attempts, window.may_repeat(first)) == (first, 2, False)
    window.refused(first)
    second = window.take()
    assert second is not None
    assert second.items == [1]


def test_after_a_lost_connection_all_is_taken_again_in_order() -> None:
    limits = WindowLimits(frame_items_max=1, frame_bytes_max=100, frames_in_flight_max=3)
    window = filled(1, 1, 1, 1, limits=limits)
    frames = [window.take() for _ in range(3)]
    assert frames[0] is not None
    window.repeat(frames[0])
    assert window.take() is frames[0]
    window.lost()
    assert [window.take() for _ in range(3)] == frames


@pytest.mark.parametrize("limit", ["frame_items_max", "frame_bytes_max", "frames_in_flight_max", "attempts_max"])
def test_impossible_limits(limit: str) -> None:
    given_limits = {"frame_items_max": 1, "frame_bytes_max": 1} | {limit: 0}
    with pytest.raises(LocalMisuse):
        WindowLimits(**given_limits)


@dataclass
class Model:
    """The module's description taken literally: items in a list, frames as they were seen."""

    limits: WindowLimits
    window: InFlight[tuple[int, int]]
    added: list[tuple[int, int]] = field(default_factory=list)
    in_flight: list[FlightFrame[tuple[int, int]]] = field(default_factory=list)
    to_repeat: set[int] = field(default_factory=set)
    ended: list[tuple[int, int]] = field(default_factory=list)
    newest: int = -1

    def take(self) -> None:
        is_ready = self.window.is_ready
        frame = self.window.take()
        assert is_ready == (frame is not None)
        if frame is None:
            assert len(self.in_flight) == self.limits.frames_in_flight_max or not self.to_repeat
            return
        assert len(self.in_flight) < self.limits.frames_in_flight_max
        assert len(frame.items) <= self.limits.frame_items_max
        assert frame.size == sum(size for _, size in frame.items)
        assert frame.size <= self.limits.frame_bytes_max or len(frame.items) == 1
        if self.to_repeat:
            assert frame.number == min(self.to_repeat), "the oldest that waits for it is repeated first"
            self.to_repeat.discard(frame.number)
        else:
            assert frame.number == self.newest + 1, "frames are taken in their order"
            self.newest = frame.number
            first = frame.items[0][0]
            assert frame.items == self.added[first : first + len(frame.items)]
        self.in_flight.append(frame)

    def end(self, which: int, how: str) -> None:
        if not self.in_flight:
            return
        frame = self.in_flight.pop(which % len(self.in_flight))
        getattr(self.window, how)(frame)
        if how == "repeat":
            self.to_repeat.add(frame.number)
        else:
            self.ended += frame.items

    def lost(self) -> None:
        self.window.lost()
        self.to_repeat |= {frame.number for frame in self.in_flight}
        self.in_flight.clear()

    def check(self) -> None:
        waiting = list(self.window.waiting())
        assert waiting == sorted(waiting)
        assert sorted(waiting + self.ended) == self.added, "every item is in one place"
        assert self.window.waiting_bytes == sum(size for _, size in waiting)
        assert self.window.is_idle == (not waiting)


STEPS = st.one_of(
    st.tuples(st.just("add"), st.integers(0, 60)),
    st.tuples(st.sampled_from(["press", "take", "lost"]), st.just(0)),
    st.tuples(st.sampled_from(["stored", "refused", "repeat"]), st.integers(0, 5)),
)


@settings(max_examples=300, deadline=None)
@given(
    st.builds(
        WindowLimits,
        frame_items_max=st.integers(1, 4),
        frame_bytes_max=st.integers(1, 100),
        frames_in_flight_max=st.integers(1, 4),
    ),
    st.lists(STEPS, max_size=60),
)
def test_every_item_ends_once_and_order_is_kept(limits: WindowLimits, steps: list[tuple[str, int]]) -> None:
    window: InFlight[tuple[int, int]] = InFlight(limits)
    model = Model(limits, window)
    for step, argument in steps:
        if step == "add":
            model.added.append((len(model.added), argument))
            window.add(model.added[-1], argument)
        elif step == "press":
            window.press()
        elif step == "take":
            model.take()
        elif step == "lost":
            model.lost()
        else:
            model.end(argument, step)
        model.check()
    window.press()
    while not window.is_idle:
        model.take()
        while model.in_flight:
            model.end(0, "stored")
        model.check()
    assert sorted(model.ended) == model.added


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(["stored", "repeat", "lost"]), max_size=40), st.integers(1, 30))
def test_with_one_frame_in_flight_the_receiver_sees_items_in_order(ends: list[str], count: int) -> None:
    """A repeated frame may be seen twice; without the repetitions all items come in order, none is missing."""
    window = filled(*[10] * count)
    window.press()
    seen: list[int] = []
    while (frame := window.take()) is not None:
        seen += [item for item in frame.items if item not in seen]
        end = ends.pop() if ends else "stored"
        if end == "lost":
            window.lost()
        else:
            getattr(window, end)(frame)
    assert seen == list(range(count))
