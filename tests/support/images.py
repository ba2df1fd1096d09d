"""Record images as only the broker or a broken peer makes them: any flags, counts and producer sequences."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from broker.store.placed import Placed
from remoting.protocol.records.image import encode_image
from remoting.protocol.records.record import BATCH, FLAG_FORMAT_MASK, Buffer


def make_image(
    *,
    flags: int = 0,
    born_ms: int = 5,
    topic: bytes = b"t",
    keys: bytes = b"",
    tags: bytes = b"",
    properties: Sequence[tuple[bytes, bytes]] = (),
    body: Buffer = b"x",
    count: int = 1,
    producer_seq: int = 0,
) -> bytes:
    """One image; it is a batch exactly when its flags name a format."""
    made = bytearray(
        encode_image(
            flags=flags, born_ms=born_ms, topic=topic, keys=keys, tags=tags, properties=properties, body=body
        )
    )  # fmt: skip
    if flags & FLAG_FORMAT_MASK:
        struct.pack_into("<I", made, 4, BATCH)
    struct.pack_into("<I", made, 52, count)
    struct.pack_into("<Q", made, 72, producer_seq)
    return bytes(made)


def placed(queues: Sequence[int], body: Buffer = b"x", **parts: object) -> Placed:
    """One message for these queues, to be stored."""
    image = make_image(body=body, **parts)  # type: ignore[arg-type]
    return Placed(image, [tuple(queues)], int(parts.get("count", 1)))  # type: ignore[call-overload]
