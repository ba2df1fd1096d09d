"""Images with their queues: counted, walked, put together."""

from __future__ import annotations

from broker.store.placed import Placed, together
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
