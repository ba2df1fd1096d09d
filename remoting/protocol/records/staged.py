"""Images that are stored before they are published: rows of a sink that wait for their commit, delayed messages.

Such an image goes to one hidden queue, with the STAGED flag. What it needs to be placed later stands in producer_seq:

    bits 0-15 wanted queue | 16-23 kind | 24-31 low flags, of a batch format and codec | 32-63 its room's own

The flags above bit 7 stay where they are, so that a staged batch is a batch and counts its messages. Invariant: what is
shown is the image that was hidden. Thread rule: pure functions.
"""

from __future__ import annotations

from remoting.protocol.records.image import change_image, kind_of, wanted_queue
from remoting.protocol.records.record import FLAG_FORMAT_MASK, FLAG_FORMAT_SHIFT, FLAG_STAGED, RecordView


def hide(image: RecordView, own: int = 0) -> bytes:
    """Return the image as a staged one; `own` is kept in the upper half of its producer_seq."""
    flags = image.flags
    kept = flags >> FLAG_FORMAT_SHIFT if flags & FLAG_FORMAT_MASK else flags
    seq = wanted_queue(image) & 0xFFFF | kind_of(image) << 16 | (kept & 0xFF) << 24 | own << 32
    return change_image(image, flags=FLAG_STAGED | flags & ~0xFF, producer_seq=seq)


def show(record: RecordView) -> bytes:
    """Return the image that a staged record was hidden as."""
    seq, flags = record.producer_seq, record.flags
    low = 0 if flags & FLAG_FORMAT_MASK else seq >> 24 & 0xFF
    return change_image(record, flags=flags & ~0xFF | low, queue_index=seq & 0xFFFF)
