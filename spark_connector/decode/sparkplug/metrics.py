"""The metrics of many messages as one Arrow array: members are gathered flat, rows are offsets into them.

Invariant: as many rows as `end_row` was called; a metric that cannot be read in part is there with what can. Pure.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from spark_connector.decode.errors import Mismatch
from spark_connector.decode.sparkplug.values import (
    LONG_BOUND,
    NOTHING,
    Value,
    microseconds,
    property_map,
    to_json,
    value_of,
)
from spark_connector.decode.sparkplug_payload import datatype_name

METADATA_FIELDS = {
    "isMultiPart": "is_multi_part", "contentType": "content_type", "size": "size", "seq": "seq",
    "fileName": "file_name", "fileType": "file_type", "md5": "md5", "description": "description",
}  # fmt: skip


class Known(NamedTuple):
    """What certificates tell of a message's metrics, or why they tell nothing."""

    aliases: dict[int, tuple[str, int]]
    datatypes: dict[str, int]
    missing: str


class MetricRows:
    """Gathers metrics row by row."""

    def __init__(self) -> None:
        self._metrics: list[tuple[Any, ...]] = []
        self._edges = [0]
        self._absent: list[bool] = []

    def end_row(self, *, present: bool) -> None:
        """The metrics added since the last call are one row's; null where there was no payload."""
        self._edges.append(len(self._metrics))
        self._absent.append(not present)

    def add_all(self, payload: Any, known: Known, default_time: int | None) -> str:
        """Add the metrics of a payload; return the first thing that is wrong, empty when nothing is."""
        reason = ""
        for metric in payload.metrics:
            wrong = self._add(metric, known, default_time)
            reason = reason or wrong
        return reason

    def _add(self, metric: Any, known: Known, default_time: int | None) -> str:
        alias = metric.alias
        if not alias and not metric.HasField("alias"):
            alias = None
        name, datatype, reason = _identity(metric.name, alias, metric.datatype, known)
        value, wrong = _value(metric, datatype)
        at = default_time
        if metric.timestamp:
            at, late = _time(metric.timestamp)
            wrong = wrong or late
        properties = metadata = None
        if metric.HasField("properties") or metric.HasField("metadata"):
            properties, metadata, odd = _extras(metric)
            wrong = wrong or odd
        if alias is not None and alias >= LONG_BOUND:
            alias, wrong = None, f"alias {alias} is above {LONG_BOUND - 1}"
        flags = (metric.is_historical, metric.is_transient, metric.is_null)
        self._metrics.append((name, alias, at, datatype_name(datatype), *flags, *value, properties, metadata))
        return f"metric {name or alias}: {reason or wrong}" if reason or wrong else ""

    def array(self, type_: pa.DataType) -> pa.Array:
        """Everything gathered, as a list of structs per row."""
        inner = type_.value_type
        members = list(zip(*self._metrics, strict=True)) if self._metrics else [()] * inner.num_fields
        children = [pa.array(values, field.type) for values, field in zip(members, inner, strict=True)]
        structs = pa.StructArray.from_arrays(children, fields=list(inner))
        offsets = pa.array(np.array(self._edges, np.int32))
        mask = pa.array(self._absent, pa.bool_())
        return pa.ListArray.from_arrays(offsets, structs, type=type_, mask=mask)


def _identity(name: str, alias: int | None, datatype: int, known: Known) -> tuple[str | None, int, str]:
    """(name, data type, what is wrong): from the metric itself, else from the certificate."""
    if not name:
        if alias is None:
            return None, datatype, "neither name nor alias"
        told = known.aliases.get(alias)
        if told is None:
            return None, datatype, known.missing or f"alias {alias} is not in the birth certificate"
        return told[0], datatype or told[1], ""
    if datatype:
        return name, datatype, ""
    if name not in known.datatypes:
        return name, 0, known.missing or "its data type is neither here nor in the birth certificate"
    return name, known.datatypes[name], ""


def _value(metric: Any, datatype: int) -> tuple[Value, str]:
    if metric.is_null:
        return NOTHING, ""
    held = metric.WhichOneof("value")
    if held is None:
        return NOTHING, "it has no value and is not null"
    try:
        return value_of(datatype, held, getattr(metric, held)), ""
    except Mismatch as mismatch:
        return NOTHING, f"{mismatch.wanted} is needed, not {mismatch.found}"


def _time(milliseconds: int) -> tuple[int | None, str]:
    try:
        return microseconds(milliseconds), ""
    except Mismatch as mismatch:
        return None, f"timestamp: {mismatch.wanted} is needed, not {mismatch.found}"


def _extras(metric: Any) -> tuple[list[tuple[str, str | None]] | None, str | None, str]:
    """(properties, metadata, what is wrong); nested properties and anything that is no text are JSON."""
    metadata = None
    if metric.HasField("metadata"):
        message = metric.metadata
        metadata = to_json({n: getattr(message, f) for n, f in METADATA_FIELDS.items() if message.HasField(f)})
    if not metric.HasField("properties"):
        return None, metadata, ""
    try:
        pairs = property_map(metric.properties)
    except Mismatch as mismatch:
        return None, metadata, f"properties: {mismatch.wanted} is needed, not {mismatch.found}"
    texts = [(key, one if one is None or isinstance(one, str) else to_json(one)) for key, one in pairs.items()]
    return texts, metadata, ""
