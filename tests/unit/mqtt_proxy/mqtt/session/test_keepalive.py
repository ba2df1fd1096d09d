"""The expiry ring against a naive search."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mqtt_proxy.mqtt.session.keepalive import SLOT_MS, SLOTS, ExpiryRing


class Item:
    """Something with a deadline."""

    def __init__(self, deadline: int | None) -> None:
        self.deadline = deadline
        self.asked = 0

    def next_deadline_ms(self) -> int | None:
        self.asked += 1
        return self.deadline


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("advance"), st.integers(0, 3_000)),
        st.tuples(st.just("advance"), st.integers(200_000, 600_000)),
        st.tuples(st.just("touch"), st.integers(0, 4)),
    ),
    max_size=30,
)


@given(st.lists(st.integers(1, 400_000), min_size=5, max_size=5), STEPS)
def test_against_a_naive_search(periods: list[int], steps: list[tuple[str, int]]) -> None:
    """Nothing is reported early or twice, or later than one slot."""
    now = 10_000
    ring: ExpiryRing[Item] = ExpiryRing(now)
    items = [Item(now + period) for period in periods]
    alive = set(items)
    for item in items:
        ring.watch(item)
    for step, value in steps:
        if step == "touch":
            items[value].deadline = now + periods[value]
            continue
        now += value
        due = ring.expire(now)
        assert len(due) == len(set(due))
        assert set(due) <= {item for item in alive if item.next_deadline_ms() <= now}  # type: ignore[operator]
        alive -= set(due)
        assert all(item.next_deadline_ms() > now - SLOT_MS for item in alive)  # type: ignore[operator]
        assert len(ring) == len(alive)


def test_a_quiet_item_costs_one_visit_per_turn() -> None:
    """Only the slots passed are visited."""
    ring: ExpiryRing[Item] = ExpiryRing(0)
    item = Item(SLOTS * SLOT_MS * 3)
    ring.watch(item)
    for now in range(0, SLOTS * SLOT_MS * 3, SLOT_MS):
        assert ring.expire(now) == []
    assert item.asked <= 5


def test_watch_again_and_forget() -> None:
    """An earlier deadline needs a new watch; None leaves the ring; forgetting twice has no effect."""
    ring: ExpiryRing[Item] = ExpiryRing(0)
    item = Item(100_000)
    ring.watch(item)
    item.deadline = 1_000
    ring.watch(item)
    assert ring.expire(1_500) == [item]
    ring.watch(item)
    ring.forget(item)
    ring.forget(item)
    assert ring.expire(9_000) == []
    item.deadline = 12_000
    ring.watch(item)
    item.deadline = None
    assert ring.expire(20_000) == []
    assert len(ring) == 0
    ring.watch(item)
    assert len(ring) == 0


def test_the_shortest_keep_alive_is_one_and_a_half_times_its_interval() -> None:
    """[MQTT-3.1.2-24] A keep-alive of 1 s is reported at most a tenth of a second late."""
    for began_ms in range(0, 500, 7):
        ring: ExpiryRing[Item] = ExpiryRing(began_ms)
        item = Item(began_ms + 1_500)
        ring.watch(item)
        looks = range(began_ms - began_ms % SLOT_MS + SLOT_MS, began_ms + 3_000, SLOT_MS)
        reported_ms = next(now for now in looks if ring.expire(now))
        assert 1_500 <= reported_ms - began_ms <= 1_600
