"""FILTERED_PULL: what passes comes with its offset, what does not stays, and the answer says how far it looked."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from broker.reading.pull_filtered import filtered
from remoting.access.rules import ALLOWED, Verdict
from remoting.filtering import judge
from remoting.protocol.bodies.filtered_body import (
    RowFilter,
    decode_filtered_reply,
    encode_filtered_pull,
    encode_row_filter,
)
from remoting.protocol.bodies.pull_body import STATUS_NO_SUCH_QUEUE, PulledRange
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.record import iter_records


def asking(queue_id: int, offset: int, end: int, wanted: RowFilter, size: int = 99_999) -> Command:
    body = encode_filtered_pull(queue_id, offset, end, size, encode_row_filter(wanted))
    return Command(RequestCode.FILTERED_PULL, body=body)


def offsets(pulled: PulledRange) -> list[int]:
    assert pulled.offsets is not None
    return [pulled.first_offset + above for above in np.frombuffer(pulled.offsets, "<u4").tolist()]


async def stored(running, *topics: bytes) -> int:
    """Publish into a parent topic of one queue; its id."""
    running.broker.topics.table.ensure("a", 1)
    reply = await running.connect().request(Command(RequestCode.APPEND_MANY, body=running.publish(*topics)))
    assert reply.code == 0, reply.remark
    (queue_id,) = running.broker.topics.table.queue_ids("a")
    return queue_id


async def test_only_what_passes_comes(running) -> None:
    queue_id = await stored(running, b"a/1", b"a/2", b"a/1", b"a/3", b"a/1")
    connection = running.connect()
    reply = await connection.request(asking(queue_id, 1, 4, RowFilter(mqtt=("a/1", "a/3"))))
    found = decode_filtered_reply(reply.body)
    assert (found.first_offset, found.next_offset, found.max_offset, offsets(found)) == (1, 4, 5, [2, 3])
    assert [view.mqtt_topic for view in iter_records(found.blob)] == [b"a/1", b"a/3"]
    none = decode_filtered_reply((await connection.request(asking(queue_id, 0, 9, RowFilter(tags=("t",))))).body)
    assert (none.count, none.next_offset) == (0, 5)
    every = decode_filtered_reply((await connection.request(asking(queue_id, 0, 9, RowFilter(mqtt=("a/#",))))).body)
    assert offsets(every) == [0, 1, 2, 3, 4]


async def test_one_request_looks_at_so_many(running, monkeypatch) -> None:
    for name in ("LOOK_MAX", "LOOK_PURE_MAX"):
        monkeypatch.setattr(judge, name, 2)
    judge.judge_of.cache_clear()
    queue_id = await stored(running, b"a/1", b"a/2", b"a/9")
    found = decode_filtered_reply(
        (await running.connect().request(asking(queue_id, 0, 9, RowFilter(mqtt=("a/9",))))).body
    )
    assert (found.count, found.next_offset) == (0, 2)
    judge.judge_of.cache_clear()


async def test_refusals(running) -> None:
    queue_id = await stored(running, b"a/1")
    connection = running.connect()
    reply = await connection.request(asking(queue_id, 0, 9, RowFilter(sql="a >")))
    assert reply.code == ResponseCode.INVALID_PARAMETER
    assert "SQL expression" in (reply.remark or "")
    gone = decode_filtered_reply((await connection.request(asking(9_999, 0, 9, RowFilter(sql="a = 1")))).body)
    assert gone.status == STATUS_NO_SUCH_QUEUE


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (RowFilter(mqtt=("a/1",)), 0),
        (RowFilter(mqtt=("a/1", "a/2")), ResponseCode.NO_PERMISSION),
        (RowFilter(tags=("t",)), ResponseCode.NO_PERMISSION),
    ],
)
async def test_who_may_read_a_filter_may_read_what_passes_it(running, wanted: RowFilter, code: int) -> None:
    queue_id = await stored(running, b"a/1", b"a/2")
    running.judge_by(lambda _identity, _action, resource: resource == "a/1")
    reply = await running.connect().request(asking(queue_id, 0, 9, wanted))
    assert reply.code == code


def withheld_by(running) -> dict[str, int]:
    return {reason: child.value for (reason,), child in running.broker.tools.metrics.withheld.children.items()}


class Thinning:
    """A policy for which `a/2` may not be read, and `b/#` not at all."""

    def __call__(self, _identity: str, _action: str, resource: str) -> bool:
        return resource in ("a/1", "a/3")

    def readable(self, _identity: str, topic_filter: str) -> Callable[[bytes], Verdict] | None:
        return None if topic_filter.startswith("b") else judge_topic


def judge_topic(topic: bytes) -> Verdict:
    return ALLOWED if topic != b"a/2" else Verdict(allowed=False, reason="deny_rule")


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        (("a/#",), [0, 2, 3]),
        (("a/+", "a/2"), [0, 2, 3]),
        (("a/1", "a/#"), [0, 2, 3]),
        (("#", "a/1"), [0, 2, 3]),
        (("a/1",), [0, 3]),
        (("a/1", "b/#"), None),
        (("b/#", "a/#"), None),
        ((), None),
    ],
)
async def test_of_a_filter_wider_than_the_rights_comes_what_may_be_read(running, filters, found) -> None:
    """In whatever order the filters stand; one of which nothing may be read, and none at all, are refused."""
    queue_id = await stored(running, b"a/1", b"a/2", b"a/3", b"a/1")
    running.judge_by(Thinning())
    reply = await running.connect().request(asking(queue_id, 0, 9, RowFilter(mqtt=filters)))
    if found is None:
        assert reply.code == ResponseCode.NO_PERMISSION
    else:
        pulled = decode_filtered_reply(reply.body)
        assert offsets(pulled) == found
        assert b"a/2" not in bytes(pulled.blob)
        assert pulled.next_offset == 4
    assert withheld_by(running) == ({"deny_rule": 1} if found == [0, 2, 3] else {})


async def test_what_is_withheld_is_counted_by_reason(running) -> None:
    """Only what passed the filter, once for every pull; a damaged record, whose topic is unknown, is for nobody."""
    queue_id = await stored(running, b"a/1", b"a/2", b"a/3", b"a/2")
    running.judge_by(Thinning())
    connection = running.connect()
    for wanted in (RowFilter(mqtt=("a/#",)), RowFilter(mqtt=("a/#",), tags=("t",)), RowFilter(mqtt=("a/+",))):
        assert (await connection.request(asking(queue_id, 0, 9, wanted))).code == 0
    assert withheld_by(running) == {"deny_rule": 4}
    found = running.store.reading.read_range(queue_id, 0, 9, 99_999, 9)
    queues_at = int(found.starts[1]) + 56
    found.blob[queues_at : queues_at + 2] = b"\xff\xff"  # more queues than there is room for
    withheld: dict[str, int] = {}
    pulled = filtered(found, judge.judge_of(encode_row_filter(RowFilter(mqtt=("a/#",)))), judge_topic, withheld)
    assert (offsets(pulled), withheld) == ([0, 2], {"unreadable": 1, "deny_rule": 1})
