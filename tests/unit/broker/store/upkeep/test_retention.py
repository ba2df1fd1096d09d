"""What expires, of the log and of groups of queues, and what is carried forward first."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.store.errors import StoreFull
from broker.store.index.reader import OFFSET_TOO_SMALL
from broker.store.placed import Placed
from broker.store.settings import FILES_WANTED
from broker.store.state import state_kinds
from broker.store.state.state_kinds import RETENTION, StateChange
from broker.store.state.state_tables import GroupRule
from broker.store.upkeep.retention import (
    AGE,
    FULL_DISK,
    INTERVAL_MS_MAX,
    INTERVAL_MS_MIN,
    REWRITE_INTERVAL_MS,
    SIZE,
    STATE_SHARE,
    RetentionLimits,
    choose_segments,
    interval_ms,
    republished,
)
from remoting.protocol.records.image import encode_image
from remoting.protocol.records.properties import expires_ms
from remoting.protocol.records.record import CLIENT_ID_KEY, FLAG_MQTT, FLAG_RETAIN, MQTT_TOPIC_KEY, RecordView
from tests.sim.replicas import ReplicaBench, pull
from tests.sim.stores import StoreBench, bodies, drain, message
from tests.support.plants import Plant, catches

CARRY = "broker.store.upkeep.retention:CarryForward._carry_entries"


def expire(bench: StoreBench, begin: int) -> None:
    """Maintain until the log begins at or above `begin`."""
    for _ in range(400):
        bench.store.maintain(bench.clock.now_ms())
        bench.settle()
        drain(bench.store)
        if bench.store.begin_position >= begin and not bench.store._parts.opened.index.expired_runs():
            return
    raise AssertionError(f"the log still begins at {bench.store.begin_position}")


def test_old_segments_are_deleted_and_state_stays(tmp_path: Path) -> None:
    """Minimum offsets move, reads report it, and a rebuild from the log alone still has everything."""
    bench = StoreBench(tmp_path / "data", retention_ms=1000, carry_entries_max=3)
    store = bench.store
    busy, idle = store.queues.open_all([b"busy", b"idle"])
    gone = store.queues.open(b"gone")
    store.queues.delete([gone])
    for n in range(10):
        store.append_state([StateChange(state_kinds.SESSION, b"client%d" % n, b"state%d" % n)])
    retained = message([busy], b"21.5", flags=FLAG_MQTT | FLAG_RETAIN, mqtt_topic=b"plant/temp")
    store.append(retained, message([idle], b"only one"))
    store.append_state([StateChange(state_kinds.SESSION, b"client3", None)])
    for n in range(400):
        store.append(message([busy], b"%06d" % n + bytes(100)))
        bench.clock.advance_ms(10)
    bench.settle()
    first_end = store._log.segments[0].end
    expire(bench, first_end)
    low, high = store.reading.bounds(busy)
    assert low > 0
    assert high == 401
    assert store.reading.bounds(idle) == (1, 1)
    result = store.reading.read(busy, 0, 5, 1 << 20)
    assert (result.status, result.first_offset) == (OFFSET_TOO_SMALL, low)
    assert bodies(store, busy) == [b"%06d" % n + bytes(100) for n in range(low - 1, 400)]

    def check(store) -> None:
        sessions = {key: value for key, (value, _) in store.state.items(state_kinds.SESSION)}
        assert sessions == {b"client%d" % n: b"state%d" % n for n in range(10) if n != 3}
        position = store.state.get(state_kinds.RETAINED, b"plant/temp")[1]
        record = RecordView(store.reading.read_at(position), 0)
        assert (record.mqtt_topic, bytes(record.body), record.dispatch()) == (b"plant/temp", b"21.5", [])
        assert (store.queues.find(b"busy"), store.queues.find(b"idle"), store.queues.find(b"gone")) == (
            busy,
            idle,
            None,
        )
        assert store.reading.next_offset(idle) == 1
        assert store.reading.bounds(busy) == (low, high)

    check(store)
    bench.reopen()
    check(bench.store)
    bench.store.close()
    shutil.rmtree(bench.directory / "index")
    shutil.rmtree(bench.directory / "state")
    (bench.directory / "CHECKPOINT").unlink()
    bench.open()
    check(bench.store)
    assert bench.store.queues.open(b"new") == gone + 1
    bench.close()


@catches(
    Plant("brings-back-what-was-replaced", CARRY, "if entry is None or entry[1] != position:", "if entry is None:"),
    Plant(
        "brings-back-what-was-removed",
        CARRY,
        "if entry is None or entry[1] != position:",
        "if entry is not None and entry[1] != position:",
    ),
)
def test_state_that_changes_while_it_is_carried_forward_is_not_set_back(tmp_path: Path) -> None:
    """It was found in the segment that goes; by the time that it is its turn there is a newer value, or none."""
    bench = StoreBench(tmp_path / "data", retention_ms=1000, carry_entries_max=1)
    store = bench.store
    for n in range(10):
        store.append_state([StateChange(state_kinds.SESSION, b"client%d" % n, b"old")])
    queue = store.queues.open(b"q")
    for n in range(200):
        store.append(message([queue], b"%06d" % n + bytes(100)))
        bench.clock.advance_ms(20)
    bench.settle()
    first_end, carried = store._log.segments[0].end, store.retention.carried
    while not carried.total:
        store.maintain(bench.clock.now_ms())
    assert carried.total == 1
    for n in range(10):
        value = None if n % 2 else b"new"
        store.append_state([StateChange(state_kinds.SESSION, b"client%d" % n, value)])
    expire(bench, first_end)
    for _ in range(2):
        found = {key: value for key, (value, _) in bench.store.state.items(state_kinds.SESSION)}
        assert found == {b"client%d" % n: b"new" for n in range(0, 10, 2)}
        bench.reopen()
    bench.close()


def test_size_limit(tmp_path: Path) -> None:
    """The oldest segments are deleted until the log fits, and whole runs with them."""
    bench = StoreBench(tmp_path / "data", retention_size_bytes=65_536)
    queue = bench.store.queues.open(b"q")
    for n in range(900):
        bench.store.append(message([queue], b"%d" % n + bytes(100)))
        bench.store.maintain(0)
    bench.settle()
    expire(bench, bench.store.end_position - 65_536)
    assert bench.store.metrics()["segments_expired_bytes_total"] > 0
    assert all(run.end_position > bench.store.begin_position for run in bench.store._parts.opened.index.runs)
    low, high = bench.store.reading.bounds(queue)
    assert [int(body.rstrip(b"\0")) for body in bodies(bench.store, queue)] == list(range(low, high))
    bench.close()


@given(
    st.lists(st.integers(1, 100), max_size=10),
    st.integers(0, 800),
    st.integers(0, 12),
    st.integers(0, 800),
    st.booleans(),
)
def test_choice_is_a_prefix(sizes, size_max: int, oldest_ms: int, held: int, make_room: bool) -> None:
    """Only whole segments from the oldest on, never more than the rules ask for; kept ones for size alone."""
    ends, total = [], 0
    for n, size in enumerate(sizes):
        total += size
        ends.append((total, n))
    end = total + 10
    chosen = choose_segments(0, ends, end, RetentionLimits(oldest_ms, size_max, held, make_room=make_room))
    assert [position for position, _ in chosen] == [position for position, _ in ends[: len(chosen)]]
    begin = 0
    for (position, reason), (_, newest_ms) in zip(chosen, ends, strict=False):
        assert reason != SIZE or end - begin > size_max > 0
        assert reason != AGE or (newest_ms < oldest_ms and position <= held)
        assert reason != FULL_DISK or (make_room and begin == 0)
        begin = position
    if len(chosen) < len(ends):
        following, newest_ms = ends[len(chosen)]
        assert size_max == 0 or end - begin <= size_max
        assert newest_ms >= oldest_ms or following > held
        assert chosen or not make_room


def test_state_is_not_lost_when_there_is_no_room_to_write_it_again(tmp_path: Path) -> None:
    """A carry that meets a full disk is repeated; the segment stays until it succeeded."""
    bench = StoreBench(tmp_path / "data", retention_size_bytes=49_152)
    store = bench.store
    store.append_state([StateChange(state_kinds.SESSION, b"client", b"state")])
    queue = store.queues.open(b"q")
    for _ in range(60):
        store.append(message([queue], bytes(1000)))
    bench.settle()
    bench.faults.arm("log.write", OSError(errno.ENOSPC, "full"), times=2)
    for _ in range(3):
        store.maintain(0)
        assert store.begin_position == 0
    expire(bench, 1)
    bench.close()
    shutil.rmtree(bench.directory / "state")
    bench.open()
    assert bench.store.begin_position > 0
    assert bench.store.state.get(state_kinds.SESSION, b"client")[0] == b"state"
    bench.close()


def test_a_segment_waits_for_what_replaced_its_state(tmp_path: Path) -> None:
    """A record that is not on the disk yet does not make the old one superfluous: a crash would lose both."""
    bench = StoreBench(tmp_path / "data", retention_size_bytes=49_152)
    store = bench.store
    store.append_state([StateChange(state_kinds.SESSION, b"client", b"old")])
    for _ in range(600):
        store.append(message([], bytes(100)))
    bench.settle()
    flushed = store.positions.flushed
    store.append_state([StateChange(state_kinds.SESSION, b"client", b"new")])
    for _ in range(50):
        store.retention.step(bench.clock.now_ms(), flushed)
        drain(store)
        bench.turn()
        assert store.begin_position == 0
    bench.settle()
    for _ in range(50):
        store.retention.step(bench.clock.now_ms(), store.positions.flushed)
        drain(store)
        bench.turn()
    assert store.begin_position > 0
    bench.close()


def test_a_full_disk_deletes_the_oldest_segment_only_where_allowed(tmp_path: Path) -> None:
    """Below the floor nothing is deleted; with `expire_when_full` segment after segment, until there is room."""
    for allowed in (False, True):
        bench = StoreBench(tmp_path / str(allowed), expire_when_full=allowed)
        store = bench.store
        queue = store.queues.open(b"q")
        store.append_state([StateChange(state_kinds.SESSION, b"client", b"state")])
        for n in range(100):
            store.append(message([queue], b"%03d" % n + bytes(1000)))
        bench.settle()
        bench.faults.arm("disk.free", OSError(errno.ENOSPC, "full"), times=30)
        for _ in range(12):
            store.maintain(bench.clock.now_ms())
            bench.settle()
            drain(store)
        assert store.disk.full
        assert (store.begin_position > 0) is allowed
        assert (store.metrics()["segments_expired_disk_full_bytes_total"] > 0) is allowed
        for _ in range(30):
            store.maintain(bench.clock.now_ms())
        assert not store.disk.full
        low = store.reading.bounds(queue)[0]
        store.append(message([queue], b"100"))
        bench.settle()
        assert [int(body[:3]) for body in bodies(store, queue)] == list(range(low, 101))
        assert store.state.get(state_kinds.SESSION, b"client")[0] == b"state"
        bench.close()


def test_a_segment_waits_for_its_keepers(tmp_path: Path) -> None:
    """Each keeper is asked until it has appended all of it again; a full disk only delays that."""
    bench = StoreBench(tmp_path / "data", retention_ms=1000)
    store = bench.store
    busy, kept = store.queues.open_all([b"busy", b"kept"])
    asked: list[int] = []

    def keep(target: int, append) -> bool:
        asked.append(target)
        if len(asked) == 1:
            raise StoreFull("no room")
        if len(asked) < 4:
            append(message([kept], b"again"), [StateChange(state_kinds.DELAYED, b"k", b"%d" % len(asked))])
            return False
        return True

    store.retention.carried.keep(keep)
    for n in range(400):
        store.append(message([busy], b"%06d" % n + bytes(100)))
        bench.clock.advance_ms(10)
    bench.settle()
    first_end = store._log.segments[0].end
    begin = store.begin_position
    while len(asked) < 4:
        store.maintain(bench.clock.now_ms())
        bench.settle()
        assert store.begin_position == begin
    expire(bench, first_end)
    assert set(asked[:4]) == {asked[0]}
    assert bodies(store, kept) == [b"again"] * 2
    assert store.state.get(state_kinds.DELAYED, b"k")[0] == b"3"
    bench.close()


def expiring(tmp_path: Path, kept: int) -> tuple[ReplicaBench, ReplicaBench]:
    """A master that has expired much of its log, and a replica that keeps `kept` bytes and has all of it."""
    master = ReplicaBench(tmp_path / "master", epoch=1, retention_size_bytes=65_536)
    replica = ReplicaBench(tmp_path / "replica", role="replica", retention_size_bytes=kept)
    queue = master.store.queues.open(b"q")
    master.store.append_state([StateChange(4, b"k", b"v")])
    for _ in range(20):
        for _ in range(10):
            master.store.append(message([queue], bytes(900)))
        master.flush()
        pull(master.store, replica.store, 5000)
        replica.flush()
        limit = replica.store.positions.flushed
        master.store.positions.limit_confirm(limit)
        replica.store.positions.limit_confirm(limit)
        for bench in (master, replica):
            bench.store.maintain(0)
            drain(bench.store)
            bench.turn()
    return master, replica


@pytest.mark.parametrize(("kept", "holds"), [(65_536, False), (49_152, False), (10**6, True)])
def test_a_replica_expires_what_the_master_has_announced(tmp_path: Path, kept: int, holds: bool) -> None:
    """By its own settings and never more; what it has left gives the same state after a restart without a snapshot."""
    master, replica = expiring(tmp_path, kept)
    assert master.store.begin_position > 0
    assert (replica.store.begin_position == 0) == holds
    assert replica.store.begin_position <= master.store.begin_position
    state = replica.store.state.copy()
    assert state[4][b"k"][0] == b"v"
    replica.close()
    (replica.directory / "state" / "SNAPSHOT").unlink()
    assert replica.open().state.copy() == state
    replica.close()
    master.close()


def test_a_replica_expires_nothing_that_was_not_announced(tmp_path: Path) -> None:
    """The log of a single node announces nothing: its replica keeps all, whatever its settings."""
    single = ReplicaBench(tmp_path / "single")
    queue = single.store.queues.open(b"q")
    for _ in range(100):
        single.store.append(message([queue], bytes(900)))
    single.settle()
    replica = ReplicaBench(tmp_path / "replica", role="replica", retention_size_bytes=49_152)
    pull(single.store, replica.store, 5000)
    replica.flush()
    replica.store.positions.limit_confirm(replica.store.end_position)
    for _ in range(20):
        replica.store.maintain(0)
        drain(replica.store)
        replica.turn()
    assert replica.store.begin_position == 0
    single.close()
    replica.close()


def pass_time(bench: StoreBench, ms: int = 0, steps: int = 4) -> None:
    """Let time pass and run the upkeep that is due."""
    bench.clock.advance_ms(ms)
    for _ in range(steps):
        bench.clock.advance_ms(INTERVAL_MS_MIN)
        bench.store.maintain(bench.clock.now_ms())
        bench.settle()
        drain(bench.store)


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
    """A longer rule, no rule, a restart and a rebuild from the log alone never restore an offset."""
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


def test_a_longer_age_keeps_the_log_and_its_size_limit_takes_precedence(tmp_path: Path) -> None:
    """Old segments stay as long as they have a message of the group; the size limit deletes them and reports it."""
    for size, kept in ((0, True), (65_536, False)):
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
    """Age 0 keeps the log from the group's first message on; what lies before it is deleted."""
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
        bench.settle()
        # Not from where the append began: a record that begins a file has the filler of the former one before it.
        (position,) = bench.store.reading.positions(queues[pick], sum(each == pick for each, _ in sizes), 1)
        sizes.append((pick, done.end_position - position))
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
    """What could not be written is found again; the sizes are added up again."""
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


def test_how_often_a_group_is_checked() -> None:
    """A hundredth of its age, within bounds; sizes are followed closely."""
    assert interval_ms(GroupRule((), age_ms=1)) == INTERVAL_MS_MIN
    assert interval_ms(GroupRule((), age_ms=500_000)) == 5_000
    assert interval_ms(GroupRule((), age_ms=10**12)) == INTERVAL_MS_MAX
    assert interval_ms(GroupRule((), age_ms=10**12, size_bytes=1)) == INTERVAL_MS_MIN


def retained(topic: bytes, *properties: tuple[bytes, bytes]) -> Placed:
    """A retained MQTT message with tags and these properties."""
    image = encode_image(
        flags=FLAG_MQTT | FLAG_RETAIN, queue_index=0, born_ms=5, topic=topic, keys=b"k", tags=b"tag",
        properties=((MQTT_TOPIC_KEY, topic), (CLIENT_ID_KEY, b"c"), *properties), body=b"body",
    )  # fmt: skip
    return Placed(image, [()])


def stored(bench: StoreBench, topic: bytes) -> RecordView:
    record = bench.store.reading.read_at(bench.store.state.get(state_kinds.RETAINED, topic)[1])
    return RecordView(record)


@pytest.mark.parametrize("left_s", [59, 1])
def test_the_remaining_interval_replaces_the_original(tmp_path: Path, left_s: int) -> None:
    """Everything else is the same, byte for byte; a part of a second counts as one."""
    bench = StoreBench(tmp_path / "data")
    bench.store.append(retained(b"t", (b"a", b"1"), (b"mqttExpiry", b"60"), (b"a", b"2")))
    bench.settle()
    record = stored(bench, b"t")
    assert expires_ms(record) == record.store_ms + 60_000
    again = republished(record, record.store_ms + 60_000 - left_s * 1_000 + 1)
    bench.store.append(Placed(again, [()]))
    bench.settle()
    new = stored(bench, b"t")
    assert new.properties() == [
        (MQTT_TOPIC_KEY, b"t"), (CLIENT_ID_KEY, b"c"), (b"a", b"1"), (b"mqttExpiry", b"%d" % left_s), (b"a", b"2"),
    ]  # fmt: skip
    same = ("topic", "keys", "tags", "body", "born_ms", "flags")
    assert [bytes(getattr(new, name)) if name == "body" else getattr(new, name) for name in same] == [
        bytes(getattr(record, name)) if name == "body" else getattr(record, name) for name in same
    ]
    bench.close()


def test_what_has_expired_is_not_written_again(tmp_path: Path) -> None:
    """From the very millisecond on."""
    bench = StoreBench(tmp_path / "data")
    bench.store.append(retained(b"t", (b"mqttExpiry", b"60")), retained(b"u"))
    bench.settle()
    record = stored(bench, b"t")
    assert republished(record, record.store_ms + 59_999) is not None
    assert republished(record, record.store_ms + 60_000) is None
    assert expires_ms(stored(bench, b"u")) is None
    assert republished(stored(bench, b"u"), 2**50) is not None
    bench.close()


def test_retention_lets_no_retained_message_live_longer(tmp_path: Path) -> None:
    """Its file is deleted: the expired one is deleted with it, the other has the remaining interval."""
    bench = StoreBench(tmp_path / "data", retention_ms=1_000)
    store = bench.store
    busy = store.queues.open(b"busy")
    store.append(retained(b"short", (b"mqttExpiry", b"1")), retained(b"long", (b"mqttExpiry", b"100")))
    bench.settle()
    until = expires_ms(stored(bench, b"long"))
    for number in range(400):
        store.append(message([busy], b"%06d" % number + bytes(100)))
        bench.clock.advance_ms(10)
    bench.settle()
    first_end = store._log.segments[0].end
    for _ in range(400):
        store.maintain(bench.clock.now_ms())
        bench.settle()
        drain(store)
        if store.begin_position >= first_end:
            break
    assert store.begin_position >= first_end
    assert store.state.get(state_kinds.RETAINED, b"short") is None
    assert store.metrics()["retained_expired_total"] == 1
    record = stored(bench, b"long")
    assert record.position >= first_end
    assert until <= expires_ms(record) < until + 1_000
    bench.close()


def files_bytes(bench: StoreBench) -> int:
    """What the files of the log take on the disk."""
    return sum(path.stat().st_size for path in (bench.directory / "log").iterdir())


def test_the_files_of_the_log_keep_to_its_limit_with_all_state(tmp_path: Path) -> None:
    """Those that are written and prepared are counted, and what was carried forward."""
    limit = 131_072
    bench = StoreBench(
        tmp_path / "data", retention_size_bytes=limit, segment_size_bytes=65_536, record_size_bytes_max=8_000,
        carry_entries_max=20,
    )  # fmt: skip
    store = bench.store
    queue = store.queues.open(b"q")
    for number in range(200):
        store.queues.open(b"idle %d" % number)
    largest = 0
    for _ in range(900):
        store.append(message([queue], bytes(1_000)))
        bench.clock.advance_ms(1_000)
        bench.settle()
        store.maintain(bench.clock.now_ms())
        bench.settle()
        drain(store)
        while store.retention.working:
            store.maintain(bench.clock.now_ms())
            bench.settle()
            drain(store)
        largest = max(largest, files_bytes(bench))
    assert bench.settings.largest_file_bytes == limit // FILES_WANTED
    assert largest <= limit
    assert store.retention.over_limit() == ""
    assert store.queues.find(b"idle 7") is not None
    bench.close()


def test_state_beyond_half_of_the_limit_is_reported_and_not_written_again_and_again(tmp_path: Path) -> None:
    """The log is kept at twice its state; when the state has become less, it comes down to its limit again."""
    limit = 49_152
    bench = StoreBench(tmp_path / "data", retention_size_bytes=limit, carry_entries_max=20)
    store = bench.store
    queue = store.queues.open(b"q")
    idle = [store.queues.open(b"%d" % number + bytes(200)) for number in range(400)]

    def pass_minutes(count: int) -> None:
        for _ in range(count):
            bench.clock.advance_ms(REWRITE_INTERVAL_MS)
            for _ in range(30):
                store.maintain(bench.clock.now_ms())
                bench.settle()
                drain(store)

    for _ in range(300):
        store.append(message([queue], bytes(1_000)))
        bench.settle()
        store.maintain(bench.clock.now_ms())
        bench.settle()
        drain(store)
    pass_minutes(8)
    assert f"retention_size_bytes {limit}" in store.retention.over_limit()
    assert store.metrics()["retention_state_bytes"] > limit // STATE_SHARE
    end = store.end_position
    for _ in range(200):
        store.maintain(bench.clock.now_ms())
        bench.settle()
        drain(store)
    assert store.end_position - end < 2 * 16_384, "one file at most within a minute"
    for first in range(0, len(idle), 20):
        store.queues.delete(idle[first : first + 20])
    pass_minutes(30)
    assert store.retention.over_limit() == ""
    assert files_bytes(bench) <= limit
    bench.close()
