"""Staged rows are hidden, counted, kept over a restart and given back as they came."""

from __future__ import annotations

import pytest

from broker.sink.ledger import KEPT_EXPIRY_FACTOR, AttemptKey, Stages, parse_queue_name
from broker.store.placed import Placed
from remoting.protocol.errors import Refused
from remoting.protocol.records.image import hide, show
from remoting.protocol.records.record import FLAG_STAGED, RecordView

KEY = AttemptKey("sink", 3, 1, 12)


def make(store, now_ms: int = 0, most: int = 10, hidden: set[int] | None = None) -> Stages:
    return Stages(store, set() if hidden is None else hidden, expiry_ms=1_000, attempts_max=most, now_ms=now_ms)


def stage(bench, stages: Stages, entries, key: AttemptKey = KEY) -> None:
    attempt = stages.open(key, 0)
    images = b"".join([hide(one) for one in entries])
    bench.store.append(Placed(images, [(attempt.queue_id,)] * len(entries)))
    bench.settle()


def test_names_round_trip() -> None:
    assert parse_queue_name(KEY.queue_name()) == KEY


def test_rows_come_back_as_they_were_sent(bench, make_entries) -> None:
    stages = make(bench.store)
    entries = make_entries(b"a/b", b"c", flags=5)
    stage(bench, stages, entries)
    queue_id = stages.find(KEY).queue_id
    records = bench.store.reading.read(queue_id, 0, 10, 10_000).records
    assert all(RecordView(record).flags == FLAG_STAGED for record in records)
    assert [show(RecordView(record)) for record in records] == [bytes(image.raw) for image in entries]
    assert stages.staged(KEY) == 2


def test_a_restart_keeps_them_hidden_and_counted(bench, make_entries) -> None:
    stage(bench, make(bench.store), make_entries(b"a", b"b"))
    hidden: set[int] = set()
    stages = make(bench.reopen(), now_ms=500, hidden=hidden)
    assert stages.staged(KEY) == 2
    assert hidden == {stages.find(KEY).queue_id}
    assert stages.expire(1_499) == 0
    assert stages.expire(1_500) == 1
    assert hidden == set()
    assert len(make(bench.reopen())) == 0


def test_drop_and_abort_touch_only_their_own(bench) -> None:
    stages = make(bench.store)
    for batch in (1, 2, 3):
        stages.open(AttemptKey("sink", batch, 0, 0), 0)
    stages.open(AttemptKey("other", 1, 0, 0), 0)
    assert stages.drop("sink", 2) == 2
    assert stages.abort("sink", 3) == 1
    assert stages.abort("other", 9) == 0
    assert len(stages) == 1


def test_kept_attempts_are_not_aborted_and_expire_later(bench) -> None:
    """Keeping an unknown attempt does nothing."""
    stages = make(bench.store)
    stages.open(KEY, 0)
    stages.keep(KEY)
    stages.keep(AttemptKey("sink", 3, 1, 13))
    assert stages.abort("sink", 3) == 0
    assert stages.expire(1_000) == 0
    assert stages.expire(1_000 * KEPT_EXPIRY_FACTOR) == 1
    stages.open(KEY, 0)
    stages.keep(KEY)
    assert stages.drop("sink", 3) == 1


def test_limits_and_names_are_refused(bench) -> None:
    stages = make(bench.store, most=1)
    stages.open(KEY, 0)
    with pytest.raises(Refused, match="stage_attempts_max"):
        stages.open(AttemptKey("sink", 4, 0, 0), 0)
    with pytest.raises(Refused, match="sink name"):
        make(bench.store).open(AttemptKey("a\x00b", 4, 0, 0), 0)
