"""Delayed messages that are due while nobody can elect a master go to another group, over real brokers.

Two controllers of three and the master of the first group are killed. Its replica sends what is due to the second
group, also through a kill between that group's acknowledgement and its own journal.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from remoting.client.blocking import checked
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.commands import Command
from tests.chaos.fault_proxy import OUT
from tests.processes.acting_groups import THERE, TOPIC, TwoGroups, at, delivered, now_ms, send, two_groups
from tests.processes.broker_group import until
from tests.processes.rig import no_traceback

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

DUE_AFTER_MS = 8_000
"""Long enough to kill a master first."""
LATER_MS = 10_000
"""Long enough for a replica to stand in meanwhile and to send what is due."""
HOUR_MS = 3_600_000


@pytest.fixture
def groups(tmp_path: Path) -> Iterator[TwoGroups]:
    with two_groups(tmp_path) as made:
        yield made


def test_what_is_due_is_delivered_once_by_the_other_group(groups: TwoGroups) -> None:
    """And what is not due yet, by its own one when there is a master again."""
    master = groups.start()
    due_ms = now_ms() + DUE_AFTER_MS
    for number in range(3):
        send(master, number, due_ms + number)
    handle = send(master, 3, due_ms + HOUR_MS)
    groups.lose_master(master, due_ms)
    until(lambda: len(delivered(groups.other)) == 4, "what is due does not arrive at the other group")
    assert now_ms() >= due_ms
    assert sorted(delivered(groups.other)) == [0, 1, 2, 100]

    again = groups.recover()
    with at(again) as connection:
        fields = {"topic": TOPIC, "recallHandle": handle, "delayMs": "10"}
        checked(connection.request(Command(Code.RESCHEDULE_MESSAGE, fields=fields)))
    send(again, 4, now_ms() + 10)
    until(lambda: len(delivered(again)) >= 3, "the new master delivers nothing that is due")
    assert sorted(delivered(again)) == [3, 4, 200], "what escaped is passed over"
    assert sorted(delivered(groups.other)) == [0, 1, 2, 100], "once"
    no_traceback(groups.other, *groups.group.brokers, *groups.group.controllers)


def test_a_kill_before_the_journal_has_it_loses_nothing(groups: TwoGroups) -> None:
    """The acknowledgement of the second message does not arrive: it is delivered twice, the first one once."""
    master = groups.start()
    due_ms = now_ms() + DUE_AFTER_MS
    send(master, 0, due_ms)
    send(master, 1, due_ms + LATER_MS)
    replica = groups.lose_master(master, due_ms)
    journal = groups.folder / f"{replica.data.name}-data" / "ACTING"
    until(lambda: journal.exists() and journal.read_bytes().count(b"\n") == 1, "the first one is not in the journal")
    assert now_ms() < due_ms + LATER_MS
    groups.network.set(THERE, cut=frozenset((OUT,)))
    until(lambda: 1 in delivered(groups.other), "the second one does not arrive at the other group")
    replica.kill()
    assert journal.read_bytes().count(b"\n") == 1
    there = delivered(groups.other)
    assert set(there) == {100, 0, 1}
    assert there.count(0) == 1

    groups.network.set(THERE, refuses=True)
    again = groups.recover()
    until(lambda: 1 in delivered(again), "the second one is lost to this group's consumers")
    send(again, 2, now_ms() + 10)
    until(lambda: 2 in delivered(again), "the new master delivers nothing that is due")
    assert delivered(again) == [200, 1, 2], "the first one is passed over"
    assert delivered(groups.other) == there
