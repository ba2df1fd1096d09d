"""The confirm position and those who wait for it."""

from __future__ import annotations

from types import SimpleNamespace

import structlog
from hypothesis import given
from hypothesis import strategies as st

from broker.store.log.confirm import NEVER, Confirm
from remoting.native import core as native
from remoting.native.contracts import CONFIRMED
from tests.sim.batches import Bench
from tests.support.images import placed


def entries(queues: list[int], offsets: list[int]):
    zeros = [0] * len(queues)
    return native.core.make_block(queues, offsets, zeros, zeros, zeros, [1] * len(queues))


def group(end: int, block):
    """An append whose bytes were not kept."""
    return SimpleNamespace(end_position=end, entries=block, pieces=[])


class Rows:
    """The tail, as far as confirming goes."""

    def __init__(self) -> None:
        self.bench = Bench(native.core)
        self.ring = self.bench.ring


def make() -> Confirm:
    return Confirm(0, Rows(), structlog.get_logger())


def ends(confirm: Confirm) -> list[int]:
    """Confirmed ends of the first two queues."""
    return confirm._tail.bench.rows[:2, CONFIRMED].tolist()


def test_moves_to_group_ends_only() -> None:
    """A durable position inside a group confirms only the groups before it."""
    confirm = make()
    confirm.add_group(group(100, entries([0], [0])))
    confirm.add_group(group(300, entries([0, 1], [1, 0])))
    confirm.advance(299)
    assert (confirm.position, ends(confirm)) == (100, [1, 0])
    confirm.advance(300)
    assert (confirm.position, ends(confirm)) == (300, [2, 1])


def test_fresh_batches_are_handed_on_when_they_are_confirmed() -> None:
    """Before the news of the same move; those that were not kept are left out."""
    confirm, heard = make(), []
    confirm.on_advance(lambda queues: heard.append(list(queues)))
    confirm.on_fresh(lambda batches: heard.append([batch.end_position for batch in batches]))
    batch = Bench(native.core).encode([placed((0,))])
    confirm.add_group(batch)
    confirm.add_group(group(200, entries([1], [0])))
    confirm.advance(50)
    assert heard == []
    confirm.advance(200)
    assert heard == [[batch.end_position], [0, 1]]


def test_failure_reaches_everybody_in_order() -> None:
    """Waiting callbacks get the error by position; later ones too; confirmed ones do not."""
    confirm, heard = make(), []
    confirm.add_group(group(100, entries([], [])))
    confirm.add_group(group(200, entries([], [])))
    confirm.when_confirmed(200, lambda error: heard.append((200, error)))
    confirm.when_confirmed(150, lambda error: heard.append((150, error)))
    confirm.advance(100)
    failure = RuntimeError("disk")
    confirm.fail(failure)
    confirm.when_confirmed(300, lambda error: heard.append((300, error)))
    confirm.when_confirmed(100, lambda error: heard.append((100, error)))
    assert heard == [(150, failure), (200, failure), (300, failure), (100, None)]


def test_a_callback_that_raises_harms_nobody() -> None:
    """One handler's bug leaves the other callbacks and listeners alone."""
    confirm, heard = make(), []

    def broken(*_: object) -> None:
        raise ValueError("bug")

    confirm.on_advance(broken)
    confirm.on_advance(heard.append)
    confirm.add_group(group(10, entries([2], [0])))
    confirm.when_confirmed(10, broken)
    confirm.when_confirmed(10, heard.append)
    confirm.advance(10)
    assert heard == [None, [2]]


def test_who_waits_for_the_failure_hears_of_nothing_else() -> None:
    """A position that is never reached keeps nobody waiting behind it, and its callback comes last, once."""
    confirm, heard = make(), []
    confirm.when_confirmed(NEVER, lambda error: heard.append(("never", error)))
    confirm.add_group(group(10, entries([0], [0])))
    confirm.when_confirmed(10, lambda error: heard.append((10, error)))
    confirm.advance(10)
    assert heard == [(10, None)]
    confirm.when_confirmed(20, lambda error: heard.append((20, error)))
    failure = ValueError("the disk")
    confirm.fail(failure)
    confirm.fail(failure)
    confirm.when_confirmed(NEVER, lambda error: heard.append(("late", error)))
    assert heard == [(10, None), (20, failure), ("never", failure), ("late", failure)]


def test_a_listener_is_told_while_what_it_looks_after_has_members() -> None:
    """Nobody who waits for nothing is called with every move."""
    confirm, heard, waiting = make(), [], set()
    confirm.on_advance(heard.append, waiting)
    confirm.add_group(group(10, entries([2], [0])))
    confirm.advance(10)
    assert heard == []
    waiting.add("somebody")
    confirm.add_group(group(20, entries([2], [1])))
    confirm.advance(20)
    assert heard == [[2]]


@given(st.lists(st.tuples(st.integers(1, 50), st.booleans()), max_size=30), st.lists(st.integers(0, 900), max_size=30))
def test_callbacks_fire_once_and_never_early(steps, wanted) -> None:
    """Against the definition: fired exactly when the confirm position has passed."""
    confirm, fired, end = make(), [], 0
    for position in wanted:
        confirm.when_confirmed(position, lambda _, position=position: fired.append(position))
    for size, flush in steps:
        end += size
        confirm.add_group(group(end, entries([], [])))
        if flush:
            confirm.advance(end)
        assert sorted(fired) == sorted(position for position in wanted if position <= confirm.position)
