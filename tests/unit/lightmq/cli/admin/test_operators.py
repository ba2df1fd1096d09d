"""What the operators' commands make of a broker's answers; against a running one: tests/processes."""

from __future__ import annotations

from typing import Any

import pytest

from lightmq.cli.admin import inspect_server, retained
from lightmq.cli.admin.clients import pages
from lightmq.cli.admin.groups import summed
from lightmq.cli.outcome import CommandFailed
from remoting.protocol.frames.commands import Command


class FakeBroker:
    """Gives one answer after the other."""

    name = "broker-a"

    def __init__(self, *answers: bytes) -> None:
        self._answers = list(answers)
        self.asked: list[dict[str, str]] = []

    def ask(self, command: Command) -> Command:
        self.asked.append(command.fields)
        return command.reply(body=self._answers.pop(0))


def test_pages_end_with_the_count_or_the_list() -> None:
    broker: Any = FakeBroker(b'{"rows":[{"n":1},{"n":2}],"next":"2"}', b'{"rows":[{"n":3}],"next":""}')
    assert [row["n"] for row in pages(broker, 1, "rows", {"x": "y"}, 10)] == [1, 2, 3]
    assert broker.asked == [{"x": "y", "after": "", "limit": "10"}, {"x": "y", "after": "2", "limit": "8"}]
    broker = FakeBroker(b'{"rows":[{"n":1}],"next":"1"}')
    assert len(list(pages(broker, 1, "rows", {}, 1))) == 1
    with pytest.raises(CommandFailed):
        list(pages(FakeBroker(b"{}"), 1, "rows", {}, 1))  # type: ignore[arg-type]


def test_groups_are_summed_over_the_brokers() -> None:
    rows = [
        {"name": group, "topics": topics, "topics_total": len(topics), "queues": 2, "lag": lag, "lag_s": lag_s}
        for group, topics, lag, lag_s in (("b", ["t"], 1, 2.0), ("a", ["t"], 5, 0.0), ("b", ["s", "t"], 2, 1.0))
    ]
    assert summed(rows) == [
        {"group": "a", "topics": ["t"], "topics_total": 1, "queues": 2, "messages": 5, "seconds": 0.0},
        {"group": "b", "topics": ["s", "t"], "topics_total": 2, "queues": 4, "messages": 3, "seconds": 2.0},
    ]


@pytest.mark.parametrize(
    ("status", "state", "word"),
    [
        (b'{"store":{}}', "ok", ""),
        (b'{"store":{"failed":true}}', "failed", "verify"),
        (b'{"store":{"disk_full":true}}', "failed", "disk is full"),
        (b'{"quarantined":[{}]}', "failed", "damaged"),
    ],
)
def test_what_is_wrong_is_said_with_the_remedy(status: bytes, state: str, word: str) -> None:
    row = inspect_server._health(FakeBroker(status))  # type: ignore[arg-type]
    assert (row["broker"], row["state"]) == ("broker-a", state)
    assert word in row["problem"]


def test_a_damaged_retained_message_is_shown_so_that_it_can_be_cleared() -> None:
    assert retained._cells({"topic": "a", "bytes": None})[1] == "damaged"
