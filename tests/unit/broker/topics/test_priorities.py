"""The queue of a message by its priority."""

from __future__ import annotations

import pytest

from broker.topics.topics import PRIORITY_KEY, TopicSettings, queue_of_priority
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode

PLAIN = TopicSettings(name="t")
RANKED = TopicSettings(name="t", write_queue_count=3, read_queue_count=4, attributes={"message.type": "PRIORITY"})


def parts(*priorities: bytes | None) -> list[dict[bytes, bytes]]:
    return [{} if each is None else {PRIORITY_KEY: each} for each in priorities]


@pytest.mark.parametrize(
    ("config", "priorities", "queue"),
    [
        (PLAIN, [None], 7),
        (PLAIN, [None, b""], 7),
        (RANKED, [None], 0),
        (RANKED, [b"0"], 0),
        (RANKED, [b"2"], 2),
        (RANKED, [b"3"], 2),
        (RANKED, [b"2147483647"], 2),
        (RANKED, [b"1", b"1"], 1),
        (RANKED, [b"2", b"9"], 2),
    ],
)
def test_a_message_goes_to_the_queue_of_its_priority(config, priorities, queue) -> None:
    assert queue_of_priority(config, parts(*priorities), 7) == queue


@pytest.mark.parametrize(
    ("config", "priorities"),
    [
        (PLAIN, [b"1"]),
        (PLAIN, [None, b"0"]),
        (RANKED, [b"-1"]),
        (RANKED, [b"high"]),
        (RANKED, [b""]),
        (RANKED, [b"10000000000"]),
        (RANKED, [b"1", b"2"]),
        (RANKED, [None, b"2"]),
    ],
)
def test_what_has_no_queue_is_refused(config, priorities) -> None:
    with pytest.raises(Refused) as refused:
        queue_of_priority(config, parts(*priorities), 7)
    assert refused.value.code == ResponseCode.MESSAGE_ILLEGAL
