"""Where a subscription begins that wants messages from before it: an offset of its queue.

The light queue of an exact topic has every message of it that is kept, that of a wildcard filter every one since the
queue exists. Beginning lower in the queue is all it takes: what follows is live without a gap or a repeat, and the
session's offset in the log says how far it has come.
Invariant: the answer lies between the oldest offset that is kept and the live start. Loop thread only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from remoting.protocol.session_body import HistoryWish

if TYPE_CHECKING:
    from broker.store.log_store import LogStore


def start_offset(store: LogStore, queue_id: int, wish: HistoryWish, live: int) -> int:
    """The offset of the first message wanted; `live`, the queue's end, when there is none."""
    low = store.bounds(queue_id)[0]
    if wish.from_ms is not None:
        return store.search_time(queue_id, wish.from_ms)
    if wish.from_offset is not None:
        return min(max(low, wish.from_offset), live)
    return max(low, live - (wish.last or 0))
