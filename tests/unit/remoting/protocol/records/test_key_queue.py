"""Keys choose queues as RocketMQ's Java producer does."""

from __future__ import annotations

from remoting.protocol.records.key_queue import queue_of


def test_the_queue_of_a_key_is_the_one_java_chooses() -> None:
    # "abc".hashCode() = 96354, "polygenelubricants".hashCode() = -2147483648, "hashCode" of "device-7" = 780988859
    assert queue_of(b"abc", 7) == 96354 % 7
    assert queue_of(b"polygenelubricants", 7) == 2147483648 % 7
    for queues in range(1, 9):
        assert 0 <= queue_of(b"some key", queues) < queues
