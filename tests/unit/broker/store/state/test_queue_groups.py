"""Which group a queue is in, and how far each group has expired."""

from __future__ import annotations

from broker.store.state.queue_groups import GroupRule, QueueGroups, expiry_change
from broker.store.state.state_kinds import RETENTION
from broker.store.state.state_tables import StateTables


def test_queues_and_positions() -> None:
    """A queue begins where its group does; the position never moves back; other queues know no group."""
    heard: list[int] = []
    groups = QueueGroups(StateTables(), lambda: heard.append(1))
    groups.define(b"plant", GroupRule((3, 4), age_ms=1000))
    groups.join(b"plant", [3, 4, 700])
    assert [groups.begin_of(queue) for queue in (0, 3, 700, 5000)] == [0, 0, 0, 0]
    assert not heard
    groups.move(b"plant", 80)
    groups.move(b"plant", 40)
    groups.join(b"plant", [4])
    assert (len(heard), groups.names()) == (3, [b"plant"])
    assert [groups.begin_of(queue) for queue in (0, 3, 700, 701, 5000)] == [0, 80, 80, 0, 0]
    groups.join(b"other", [700])
    assert (groups.begin_of(700), groups.begin(b"plant"), groups.begin(b"nobody")) == (0, 80, 0)


def test_what_was_hidden_stays_hidden_until_the_log_begins_there() -> None:
    """Also without a rule and after a restart; then the record about it goes, once."""
    tables = StateTables()
    tables.apply(expiry_change(b"plant", 80), 5)
    groups = QueueGroups(tables, list)
    groups.join(b"plant", [1])
    assert groups.begin_of(1) == 80
    groups.define(b"plant", GroupRule((1,), age_ms=5))
    assert groups.outlived(80) == []
    groups.forget(b"plant")
    groups.forget(b"nobody")
    assert groups.outlived(79) == []
    assert [(change.kind, change.key, change.value) for change in groups.outlived(80)] == [(RETENTION, b"plant", None)]
    assert groups.outlived(90) == []
