"""Images with their queues: counted, walked, put together."""

from __future__ import annotations

from broker.store.placed import Placed, spread, together
from remoting.protocol.records.image import encode_batch_image, encode_image


def test_together_they_are_what_they_were_one_by_one() -> None:
    one = Placed(encode_image(flags=0, born_ms=1, topic=b"t", body=b"one"), [(1, 2)])
    batch = Placed(
        encode_batch_image(topic=b"t", queue_index=0, born_ms=1, body=b"packed", count=9, codec=0), [(3,)], 9
    )
    both = together([one, batch, Placed(), one])
    assert (len(both), both.count) == (3, 11)
    assert [(bytes(image.body), queues) for image, queues in both] == [
        (b"one", (1, 2)), (b"packed", (3,)), (b"one", (1, 2)),
    ]  # fmt: skip
    assert together([one]) is one
    assert (together([]).images, len(Placed()), Placed().count) == (b"", 0, 0)


def test_a_message_for_too_many_queues_is_spread_over_several() -> None:
    """The first keeps its number and its first queues; the others stand behind all messages."""
    wide = Placed(encode_image(flags=0, born_ms=1, topic=b"t", body=b"wide"), [(9, 1, 2, 3, 4, 5, 6)])
    narrow = Placed(encode_image(flags=0, born_ms=1, topic=b"u", body=b"narrow"), [(8, 1)])
    parts = spread([narrow, wide, narrow], 3)
    found = [[(bytes(image.body), queues) for image, queues in part] for part in parts]
    assert found == [
        [(b"narrow", (8, 1))], [(b"wide", (9, 1, 2))], [(b"narrow", (8, 1))], [(b"wide", (3, 4, 5)), (b"wide", (6,))],
    ]  # fmt: skip
    assert [part.count for part in parts] == [1, 1, 1, 0]


def test_a_queue_gets_the_messages_of_a_topic_in_order_when_a_filter_ends_between_them() -> None:
    """With one filter less the last queue of the first message would be among the first ones of the second."""

    def message(body: bytes, *queues: int) -> Placed:
        return Placed(encode_image(flags=0, born_ms=1, topic=b"t", body=body), [queues])

    parts = spread([message(b"1", 9, 1, 2, 3, 4), message(b"2", 9, 1, 3, 4), message(b"3", 9, 1, 2)], 3)
    got: dict[int, list[bytes]] = {}
    for part in parts:
        for image, queues in part:
            assert len(queues) <= 3
            for queue in queues:
                got.setdefault(queue, []).append(bytes(image.body))
    assert got == {9: [b"1", b"2", b"3"], 1: [b"1", b"2", b"3"], 2: [b"1", b"3"], 3: [b"1", b"2"], 4: [b"1", b"2"]}
    assert [part.queues[0][0] for part in parts[:-1]] == [9, 9, 9]
