"""A stored message by its position, and what this broker writes into those it gives to RocketMQ's clients.

The conversion is `remoting.protocol.records.rocketmq_form`, many at a time that of the native core. `message_at` finds
one message by its position in the log, a record or one row of a batch, whose position includes the row. It finds
nothing at or above the confirm position or between two records, no records of the broker's own state, and none that
waits: for its time, or for the outcome of its transaction. Thread rule: pure functions, except `message_at`, which is
for the loop thread.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from broker.store.index.absence import Absence
from remoting.batches.unpack import ArrowMissing, is_batch, split_position
from remoting.protocol.errors import CorruptRecord, Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.records.record import FLAG_STAGED, MESSAGE, RecordView
from remoting.protocol.records.rocketmq_form import CLUSTER, MSG_REGION, NO_HOST, TRACE_ON, Origin
from remoting.protocol.records.stored_message import HOSTS_KEPT_MAX, Host

if TYPE_CHECKING:
    from broker.store.log_store import LogStore
    from remoting.batches.unpack import Unpacker

REGION = "DefaultRegion"
_ID_SIZES = (16, 28)
"""Bytes of a message id: the host in IPv4 or IPv6 with its port, and the position."""


@lru_cache(HOSTS_KEPT_MAX)
def ipv4_host(host: str, port: int) -> Host:
    """The host if it is an IPv4 address, else 127.0.0.1 with its port: every client reads the IPv4 form."""
    parts = host.split(".")
    plain = len(parts) == 4 and all(part.isascii() and part.isdigit() and int(part) < 256 for part in parts)
    return (".".join(str(int(part)) for part in parts) if plain else NO_HOST[0], port)


@lru_cache(1)
def origin_of(cluster_name: str) -> Origin:
    """The properties added to the messages of a broker of this cluster."""
    return (MSG_REGION, REGION.encode()), (TRACE_ON, b"true"), (CLUSTER, cluster_name.encode())


def position_of_id(message_id: str) -> int | None:
    """The log position in a message id made of the host and the position; None for any other text."""
    try:
        raw = bytes.fromhex(message_id)
    except ValueError:
        return None
    return int.from_bytes(raw[-8:], "big", signed=True) if len(raw) in _ID_SIZES else None


def message_at(store: LogStore, unpacker: Unpacker, position: int) -> RecordView | None:
    """The message at a position, None when there is none; Refused when its batch cannot be unpacked."""
    if position < 0:
        return None
    start, row = split_position(position)
    record = store.reading.read_at(start)
    if isinstance(record, Absence):  # the position is the client's: most likely no record begins there
        return None
    view = RecordView(record)
    if view.flags & FLAG_STAGED or (view.type != MESSAGE & 0xFF and not is_batch(view)):
        return None
    try:
        return unpacker.message(view, row)
    except (CorruptRecord, ArrowMissing) as error:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"the batch at {start} cannot be unpacked: {error}") from error
