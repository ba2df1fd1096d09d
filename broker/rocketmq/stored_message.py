"""From our record to RocketMQ's stored message, and the properties that a sent message keeps for it.

The layout itself is `remoting.protocol.records.stored_message`. Our record has no room for three fields of RocketMQ's:
the client's `flag`, the number of reconsumptions and the born host. A record from a RocketMQ client carries those that
are not zero as properties with the prefix `__rmq.`; they are removed again here, so no client ever sees them.

Invariant: every record can be converted, whatever its source, because one that cannot would stop a consumer
permanently: bytes reserved in RocketMQ's text form of properties (01, 02) become `?`, a property that would exceed the
size limit is left out, malformed hidden properties count as absent. Pure functions, except `message_at`: one message by
its position in the log, a record or one row of a batch, whose position includes the row. It finds nothing at or above
the confirm position, and no records of the broker's own state.

What RocketMQ's broker writes into every message (`origin`: region, trace switch, cluster) is added here and takes no
space in the log, and so is what a client needs to answer a request of an MQTT client (`mqtt_messages`).
"""

from __future__ import annotations

from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING

from broker.rocketmq.mqtt_messages import request_pairs
from remoting.batches.unpack import ArrowMissing, is_batch, split_position
from remoting.protocol.errors import CorruptRecord, Refused, RemoteViolation
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.records.properties import PROPERTIES_SIZE_BYTES_MAX, RESPONSE_TOPIC
from remoting.protocol.records.record import FLAG_MQTT, FLAG_QOS_MASK, MESSAGE, RecordView
from remoting.protocol.records.stored_message import HOSTS_KEPT_MAX, Host, encode_stored, from_record, unpack_host

if TYPE_CHECKING:
    from broker.store.log_store import LogStore
    from remoting.batches.unpack import Unpacker

HIDDEN_PREFIX = b"__rmq."
FLAG_KEY = b"__rmq.flag"
RECONSUME_KEY = b"__rmq.reconsume"
BORN_HOST_KEY = b"__rmq.born"
INNER_MULTI_DISPATCH = b"INNER_MULTI_DISPATCH"
INNER_MULTI_QUEUE_OFFSET = b"INNER_MULTI_QUEUE_OFFSET"
NO_HOST: Host = ("127.0.0.1", 0)

Origin = tuple[tuple[bytes, bytes], ...]
"""Properties added to every message; consumers need them to trace, and to answer a request."""
REGION = "DefaultRegion"
MSG_REGION, TRACE_ON, CLUSTER = b"MSG_REGION", b"TRACE_ON", b"CLUSTER"
ORIGIN_KEYS = frozenset((MSG_REGION, TRACE_ON, CLUSTER))
"""Values that another broker set on a forwarded message are replaced."""

_ID_SIZES = (16, 28)
"""Bytes of a message id: the host in IPv4 or IPv6 with its port, and the position."""
_SHOWN = bytes.maketrans(b"\x01\x02", b"??")
_INT_MAX = 2**31


@lru_cache(HOSTS_KEPT_MAX)
def ipv4_host(host: str, port: int) -> Host:
    """The host if it is an IPv4 address, else 127.0.0.1 with its port: every client reads the IPv4 form."""
    parts = host.split(".")
    plain = len(parts) == 4 and all(part.isascii() and part.isdigit() and int(part) < 256 for part in parts)
    return (".".join(str(int(part)) for part in parts) if plain else NO_HOST[0], port)


def origin_of(cluster_name: str) -> Origin:
    """The properties added to the messages of a broker of this cluster."""
    return (MSG_REGION, REGION.encode()), (TRACE_ON, b"true"), (CLUSTER, cluster_name.encode())


def stored_message(
    view: RecordView, queue_index: int, queue_offset: int, store_host: Host, origin: Origin = ()
) -> bytes:
    """One record as a RocketMQ client reads it, seen from the queue it was pulled from."""
    message = from_record(
        view, queue_id=queue_index, queue_offset=queue_offset, born_host=NO_HOST, store_host=store_host
    )
    shown: list[tuple[bytes, bytes]] = []
    replaced = ORIGIN_KEYS if origin else frozenset()
    multi_dispatch = asks = False
    for key, value in message.properties:
        if not key.startswith(HIDDEN_PREFIX):
            if key not in replaced:
                shown.append((key, value))
            multi_dispatch = multi_dispatch or key == INNER_MULTI_DISPATCH
            asks = asks or key == RESPONSE_TOPIC
        elif key == FLAG_KEY:
            message.flag = _number(value)
        elif key == RECONSUME_KEY:
            message.reconsume_times = _number(value)
        elif key == BORN_HOST_KEY:
            message.born_host = _host(value)
    if view.flags & FLAG_MQTT:
        shown.append((b"qosLevel", b"%d" % (view.flags & FLAG_QOS_MASK)))
    if multi_dispatch:
        offsets = b",".join(b"%d" % offset for _queue, offset in view.dispatch()[1:])
        shown.append((INNER_MULTI_QUEUE_OFFSET, offsets))
    if asks:
        shown += request_pairs(message.properties)
    shown += origin
    message.properties = _that_fit(shown)
    return encode_stored(message)


def _that_fit(pairs: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    text = b"".join(chain.from_iterable(pairs))
    if len(text) + 2 * len(pairs) <= PROPERTIES_SIZE_BYTES_MAX and b"\x01" not in text and b"\x02" not in text:
        return pairs  # the usual case
    found: list[tuple[bytes, bytes]] = []
    left = PROPERTIES_SIZE_BYTES_MAX
    for key, value in pairs:
        size = len(key) + len(value) + 2
        if size <= left:
            found.append((key.translate(_SHOWN), value.translate(_SHOWN)))
            left -= size
    return found


def _number(value: bytes) -> int:
    try:
        number = int(value)
    except ValueError:
        return 0
    return number if -_INT_MAX <= number < _INT_MAX else 0


@lru_cache(HOSTS_KEPT_MAX)
def _host(value: bytes) -> Host:
    try:
        return unpack_host(bytes.fromhex(value.decode()))
    except (ValueError, RemoteViolation):
        return NO_HOST


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
    record = store.reading.read_at(start) if start < store.confirm_position else None
    if record is None:
        return None
    view = RecordView(record)
    if view.type != MESSAGE & 0xFF and not is_batch(view):
        return None
    try:
        return unpacker.message(view, row)
    except (CorruptRecord, ArrowMissing) as error:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"the batch at {start} cannot be unpacked: {error}") from error
