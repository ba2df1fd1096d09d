"""Properties of a message that have a column of their own in a sink: the delay and the MQTT content type.

    column        property of an MQTT row    property of a row of a RocketMQ topic
    delay         delay-ms                   TIMER_DELAY_MS
    contentType   mqttContentType            mqttContentType

Invariant: where a column (or an option) says something, the map `properties` says nothing of the same, so no message
has two of them; null and a delay of 0 say nothing. Pure functions over Arrow columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from remoting.protocol.records import mqtt_properties
from spark_connector.errors import OptionError

Flags = np.ndarray[Any, np.dtype[np.bool_]]

MQTT_DELAY, QUEUE_DELAY = b"delay-ms", b"TIMER_DELAY_MS"
DELAY_KEYS = (MQTT_DELAY, QUEUE_DELAY, b"TIMER_DELAY_SEC", b"TIMER_DELIVER_MS", b"DELAY")
"""Every property by which a message can ask to be delivered later."""
DELAY_MS_MAX = 10**15 - 1
"""More digits no broker reads; what it allows is its own setting, days rather than years."""
EMPTY = pa.scalar(b"", pa.binary())

Pair = tuple[pa.Array, pa.Array]
"""(keys, values) of one property; both are empty in the rows that do not have it."""


def own_pairs(columns: Mapping[str, pa.Array], is_mqtt: Flags, delay_ms: int) -> tuple[list[Pair], tuple[bytes, ...]]:
    """The properties that columns say, and the keys which the map of properties must not say again.

    `delay_ms` is for rows without a value of their own. Raises OptionError naming column and value.
    """
    pairs: list[Pair] = []
    taken: tuple[bytes, ...] = ()
    if "delay" in columns or delay_ms:
        pairs += _delays(columns, is_mqtt, delay_ms)
        taken += DELAY_KEYS
    if "contentType" in columns:
        value = by_distinct(_binary(columns["contentType"]), mqtt_properties.quoted)
        pairs.append(_where(pc.is_valid(value), mqtt_properties.CONTENT_TYPE, pc.fill_null(value, EMPTY)))
        taken += (mqtt_properties.CONTENT_TYPE,)
    return pairs, taken


def by_distinct(column: pa.Array, change: Callable[[bytes], bytes]) -> pa.Array:
    """Apply a function to each distinct value; nulls stay null."""
    encoded = column.dictionary_encode()
    changed = pa.array([change(value) for value in encoded.dictionary.to_pylist()], pa.binary())
    return changed.take(encoded.indices)


def _delays(columns: Mapping[str, pa.Array], is_mqtt: Flags, delay_ms: int) -> list[Pair]:
    delays = np.full(len(is_mqtt), delay_ms, np.int64)
    if "delay" in columns:
        delays = pc.fill_null(columns["delay"].cast(pa.int64()), delay_ms).to_numpy(zero_copy_only=False)
        wrong = delays[(delays < 0) | (delays > DELAY_MS_MAX)]
        if len(wrong):
            raise OptionError(f"column 'delay' holds {int(wrong[0])}: milliseconds of 0 or more are needed")
    text = pa.array(delays).cast(pa.string()).cast(pa.binary())
    found = []
    for key, flags in ((MQTT_DELAY, is_mqtt), (QUEUE_DELAY, ~is_mqtt)):
        wished = flags & (delays > 0)
        if wished.any():
            found.append(_where(pa.array(wished), key, text))
    return found


def _where(present: pa.Array, key: bytes, values: pa.Array) -> Pair:
    return pc.if_else(present, pa.scalar(key, pa.binary()), EMPTY), pc.if_else(present, values, EMPTY)


def _binary(column: pa.Array) -> pa.Array:
    return column if column.type == pa.binary() else column.cast(pa.binary())
