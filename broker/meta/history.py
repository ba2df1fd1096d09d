"""Where a subscription begins that wants messages from before it: an offset of its queue.

The light queue of an exact topic has every message of it that is kept, that of a wildcard filter every one since the
queue exists. Beginning lower in the queue is all it takes: what follows is live without a gap or a repeat, and the
session's offset in the log says how far it has come.
Before a wildcard filter's queue began, its messages stand in the parent queues (`history_scan`); how far a session has
come there is a second place of its own.
Invariant: the answer lies between the oldest offset that is kept and the live start. Loop thread only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from remoting.protocol.history_body import pack_before
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


def place_before(store: LogStore, queue_id: int, wish: HistoryWish, start: int, live: int) -> int | None:
    """The place of what a wish covers before the queue of a wildcard filter begins; None when it covers nothing there.

    A queue that has lost its first messages to retention has older ones nowhere.
    """
    low = store.bounds(queue_id)[0]
    if start > 0 or low > 0 or (wish.last is not None and wish.last <= live):
        return None
    return pack_before(HistoryWish(last=wish.last - live) if wish.last is not None else wish)
