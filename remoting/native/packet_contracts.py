"""What both twins of `packets` offer: records just confirmed into runs of each queue, and runs into PUBLISH packets.

A *plain* record is a message from MQTT with nothing but its topic and perhaps the client id for properties: what most
deliveries are made of, and all that `write_run` takes. `starts` are the places of records in a blob, packed u32 of
this machine. Invariant: the twins give the same bytes, numbers and changes. Thread rule: loop thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

Buffer = bytes | memoryview

NOTHING = 0
"""A run ended because the portion or the records did."""
FULL = 1
"""A run ended at a message there was no room for: window or bytes."""
SPECIAL = 2
"""A run ended at a record that is not plain, or is to be sent with QoS 2."""

PushedRun = tuple[int, int, bytes, int]
"""(queue id, queue offset of the first, starts, bytes of the records): records of one queue without a gap."""

Written = tuple[bytes, int, int, int, int, int]
"""(PUBLISH packets, records taken, how many of them with QoS 1, payload bytes, last packet id, why it ended)."""


@dataclass(frozen=True, slots=True)
class PacketCore:
    """Records to PUBLISH packets, by one twin."""

    name: str
    starts_of: Callable[[Buffer], bytes]
    """(records back to back) -> starts. Raises CorruptRecord where the sizes do not add up to the blob."""
    split: Callable[[Buffer, Collection[int]], list[PushedRun]]
    """(records back to back, queue ids) -> the first gapless run of each of these queues, in order of appearance."""
    pick: Callable[[Buffer, bytes], bytes]
    """(blob, starts) -> these records back to back."""
    write_run: Callable[
        [Buffer, bytes, int, int, int, int, int, int, int, dict[int, object], dict[int, None], Any, int], Written
    ]
    """(blob, starts, index of the first, most records, highest QoS, protocol level, free places of the window, payload
    bytes that may be begun, last packet id, window, unacknowledged offsets, source, offset of the first) -> written.

    A message with QoS 1 takes the next free packet id, `window[id]` becomes (source, offset), and its offset joins the
    unacknowledged ones."""
