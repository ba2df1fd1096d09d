"""Groups of queues expire by their own age and size; the log holds what they need and is stronger by size alone."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.store.state.queue_groups import GroupRule
from broker.store.state.state_kinds import RETENTION
from broker.store.upkeep.group_expiry import INTERVAL_MS_MAX, INTERVAL_MS_MIN, interval_ms
from tests.sim.stores import StoreBench, bodies, message


def pass_time(bench: StoreBench, ms: int = 0, steps: int = 4) -> None:
    """Let time pass and the upkeep do what it then has to."""
    bench.clock.advance_ms(ms)
    for _ in range(steps):
        bench.clock.advance_ms(INTERVAL_MS_MIN)
        bench.store.maintain(bench.clock.now_ms())
        bench.settle()
        bench.store._site.thread.drain()


def test_a_shorter_age_hides_what_the_log_still_has(tmp_path: Path) -> None:
    """In the parent queue, in the light queues of the group and nowhere else; also where only the tail knows it."""
    bench = StoreBench(tmp_path / "data")
    store = bench.store
    parent, light, other = store.queues.open_all([b"parent", b"light", b"other"])
    store.groups.define(b"g", GroupRule((parent,), age_ms=10_000))
    store.groups.join(b"g", [parent, light])
    for n in range(100):
        store.append(message([parent, light] if n % 3 == 0 else [parent, other], b"%d" % n))
        bench.clock.advance_ms(1000)
    bench.settle()
    pass_time(bench)
    oldest = store.reading.bounds(parent)[0]
    assert 90 <= oldest + 4 <= 100
    assert bodies(store, parent) == [b"%d" % n for n in range(oldest, 100)]
    assert bodies(store, light) == [b"%d" % n for n in range(oldest, 100) if n % 3 == 0]
    assert len(bodies(store, other)) == 66
    assert store.metrics()["topics_expired_age_messages_total"] == oldest
    end = store.end_position
    pass_time(bench, 20_000)
    assert (store.reading.bounds(parent), store.reading.bounds(light)) == ((100, 100), (34, 34))
    said = store.end_position
    assert said > end
    pass_time(bench, 20_000)
    assert store.end_position == said, "an idle group writes nothing"
    store.append(message([parent, light], b"new"))
    bench.settle()
    assert (bodies(store, parent), bodies(store, light)) == ([b"new"], [b"new"])
    bench.close()


def test_hidden_for_ever(tmp_path: Path) -> None:
    """A longer rule, no rule, a restart and a rebuild from the log alone never bring an offset back."""
    bench = StoreBench(tmp_path / "data")
    queue = bench.store.queues.open(b"q")
    bench.store.groups.define(b"g", GroupRule((queue,), age_ms=1000))
    bench.store.groups.join(b"g", [queue])
    for n in range(40):
        bench.store.append(message([queue], b"%d" % n))
    bench.settle()
    pass_time(bench, 5000)
    assert bench.store.reading.bounds(queue) == (40, 40)
    bench.store.groups.define(b"g", GroupRule((queue,), age_ms=10**9))
    pass_time(bench)
    bench.store.groups.forget(b"g")
    pass_time(bench)
    assert bench.store.reading.bounds(queue) == (40, 40)
    bench.store.close()
    for name in ("index", "state"):
        shutil.rmtree(bench.directory / name)
    bench.open()
    bench.store.groups.join(b"g", [queue])
    assert bench.store.reading.bounds(queue) == (40, 40)
    bench.close()


def test_a_longer_age_holds_the_log_and_its_size_limit_wins(tmp_path: Path) -> None:
    """Old segments stay as long as they hold a message of the group; the size limit takes them and says so."""
    for size, kept in ((0, True), (40_000, False)):
        bench = StoreBench(tmp_path / str(size), retention_ms=1000, retention_size_bytes=size)
        store = bench.store
        audit, noise = store.queues.open_all([b"audit", b"noise"])
        store.groups.define(b"audit", GroupRule((audit,), age_ms=10**7))
        store.groups.join(b"audit", [audit])
        pass_time(bench)
        store.append(message([audit], b"keep me"))
        for _ in range(120):
            store.append(message([noise], bytes(1000)))
        bench.settle()
        pass_time(bench, 5000, steps=12)
        assert (bodies(store, audit) == [b"keep me"]) is kept
        assert (store.begin_position == 0) is kept
        found = store.metrics()
        assert (found["retention_cut_short_bytes_total"] == 0) is kept
        assert (found["segments_expired_size_bytes_total"] == 0) is kept
        pass_time(bench, 10**7, steps=12)
        assert store.begin_position > 100_000
        assert store.metrics()["segments_expired_age_bytes_total"] > 0
        bench.close()


def test_for_ever(tmp_path: Path) -> None:
    """Age 0 holds the log from the group's first message on; what lies before it goes."""
    bench = StoreBench(tmp_path / "data", retention_ms=1000)
    noise, audit = bench.store.queues.open_all([b"noise", b"audit"])
    bench.store.groups.define(b"audit", GroupRule((audit,), age_ms=0))
    for n in range(120):
        bench.store.append(message([noise], bytes(1000)))
        if n == 60:
            bench.store.append(message([audit], b"x"))
    bench.settle()
    pass_time(bench, 10**9, steps=16)
    assert 16_384 < bench.store.begin_position <= 65_536
    assert bodies(bench.store, audit) == [b"x"]
    bench.close()


@settings(deadline=None, max_examples=40)
@given(
    spread=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2000)), min_size=1, max_size=60),
    limit=st.integers(1, 30_000),
    cut=st.integers(0, 60),
)
def test_by_size(tmp_path_factory, spread, limit: int, cut: int) -> None:
    """The newest messages of all counted queues together that fit stay, found before and after a restart."""
    bench = StoreBench(tmp_path_factory.mktemp("size") / "data")
    queues = tuple(bench.store.queues.open_all([b"a", b"b"]))
    sizes: list[tuple[int, int]] = []

    def rule() -> None:
        bench.store.groups.define(b"g", GroupRule(queues, size_bytes=limit))
        bench.store.groups.join(b"g", queues)

    rule()
    for n, (pick, size) in enumerate(spread):
        if n == cut:
            pass_time(bench)
            bench.reopen()
            rule()
        done = bench.store.append(message([queues[pick]], bytes(size)))
        sizes.append((pick, (done.end_position - done.first_position)))
    bench.settle()
    pass_time(bench)
    left, total = len(sizes), 0
    while left and total + sizes[left - 1][1] <= limit:
        left -= 1
        total += sizes[left][1]
    for pick, queue in enumerate(queues):
        gone = sum(each == pick for each, _ in sizes[:left])
        assert bench.store.reading.bounds(queue) == (gone, sum(each == pick for each, _ in sizes))
    bench.close()


def test_a_full_disk_only_delays(tmp_path: Path) -> None:
    """What could not be said is found again; the sizes are added up anew."""
    bench = StoreBench(tmp_path / "data")
    queue = bench.store.queues.open(b"q")
    bench.store.groups.define(b"g", GroupRule((queue,), size_bytes=1))
    bench.store.groups.join(b"g", [queue])
    for _ in range(5):
        bench.store.append(message([queue], b"x"))
    bench.settle()
    bench.faults.arm("log.write", OSError(errno.ENOSPC, "full"), times=1)
    bench.clock.advance_ms(2000)
    bench.store.maintain(bench.clock.now_ms())
    assert bench.store.state.count(RETENTION) == 0
    pass_time(bench)
    assert bench.store.reading.bounds(queue) == (5, 5)
    bench.close()


def test_how_often_a_group_is_looked_at() -> None:
    """A hundredth of its age, within bounds; sizes are followed closely."""
    assert interval_ms(GroupRule((), age_ms=1)) == INTERVAL_MS_MIN
    assert interval_ms(GroupRule((), age_ms=500_000)) == 5_000
    assert interval_ms(GroupRule((), age_ms=10**12)) == INTERVAL_MS_MAX
    assert interval_ms(GroupRule((), age_ms=10**12, size_bytes=1)) == INTERVAL_MS_MIN
