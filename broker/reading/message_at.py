"""One message by its position in the log: a record, or one row of a batch, whose position says the row.

Invariant: nothing at or above the confirm position, and no state of the broker's own, is ever found here. Loop thread
only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from remoting.batches.unpack import ArrowMissing, is_batch, split_position
from remoting.protocol.errors import CorruptRecord, Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.records.record import MESSAGE, RecordView

if TYPE_CHECKING:
    from broker.store.log_store import LogStore
    from remoting.batches.unpack import Unpacker


def message_at(store: LogStore, unpacker: Unpacker, position: int) -> RecordView | None:
    """The message, None when there is none; Refused when it stands in a batch that cannot be unpacked."""
    if position < 0:
        return None
    start, row = split_position(position)
    record = store.read_at(start) if start < store.confirm_position else None
    if record is None:
        return None
    view = RecordView(record)
    if view.type != MESSAGE & 0xFF and not is_batch(view):
        return None
    try:
        return unpacker.message(view, row)
    except (CorruptRecord, ArrowMissing) as error:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"the batch at {start} cannot be unpacked: {error}") from error
