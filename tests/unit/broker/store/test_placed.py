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
