"""The mark of a message that was mirrored back, and who holds a queue."""

from __future__ import annotations

import pytest

from broker.migration.returned import CLAIM_MS, Holders, ReturnMark, returned_offset

MARK = ReturnMark("rocketmq/a/0", "orders", 1, 77, 5_000)


def test_a_mark_is_of_its_queue_and_time_alone() -> None:
    value = MARK.encode()
    assert returned_offset(value, "rocketmq/a/0", "orders", 1, 5_000) == 77
    for named in (("rocketmq/a/1", "orders", 1, 5_000), ("rocketmq/a/0", "%RETRY%g", 1, 5_000),
                  ("rocketmq/a/0", "orders", 2, 5_000), ("rocketmq/a/0", "orders", 1, 5_001)):  # fmt: skip
        assert returned_offset(value, *named) is None


ENDLESS = b"rocketmq/a/0|orders|1|" + b"9" * 5_000 + b"|5000"


@pytest.mark.parametrize(
    "value", [ENDLESS, b"", b"|||", b"rocketmq/a/0|orders|1|-7|5000", b"rocketmq/a/0|orders|1|7", b"\xff|"]
)
def test_anything_else_is_no_mark(value: bytes) -> None:
    assert returned_offset(value, "rocketmq/a/0", "orders", 1, 5_000) is None


def test_a_queue_has_one_holder_until_it_is_silent() -> None:
    holders, queue = Holders(), ("rocketmq/a/0", 3)
    assert holders.take(queue, "one", 0)
    assert holders.take(queue, "one", 1_000)
    assert not holders.take(queue, "other", CLAIM_MS + 999)
    assert holders.take(queue, "other", CLAIM_MS + 1_000)
    assert not holders.take(queue, "one", CLAIM_MS + 1_001)
    holders.forget(queue)
    assert holders.take(queue, "one", CLAIM_MS + 1_001)
