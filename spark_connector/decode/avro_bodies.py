"""Avro bodies → columns: one record of the planned schema per body, without a container around it.

A body that begins with the mark of Avro's single-object encoding and this schema's own fingerprint is read behind them.
fastavro reads one record at a time; its negative indices of unions count from the end, as Python's do, which only
damaged bodies have. Invariant: one value per body and column; a body is read to its last byte or not at all. Pure.
"""

from __future__ import annotations

import io
import json
from typing import Any

import pyarrow as pa

from spark_connector.decode.avro_schema import build
from spark_connector.decode.decoded import Decoded, columns_of_rows
from spark_connector.decode.errors import Mismatch, shorten
from spark_connector.decode.libraries import need

SINGLE_OBJECT = b"\xc3\x01"
"""First bytes of Avro's single-object encoding; 8 bytes of fingerprint follow."""


class AvroDecoder:
    """Reads bodies with one schema."""

    def __init__(self, schema: pa.Schema, text: str) -> None:
        self._fastavro = need("fastavro", "avro")
        tools = need("fastavro.schema", "avro")
        node = build(tools.expand_schema(json.loads(text)))
        self._schema = schema
        self._names: list[str] = schema.names
        self._reading = self._fastavro.parse_schema(node.reading)
        self._convert = node.convert
        canonical = tools.to_parsing_canonical_form(json.loads(text))
        self._mark = SINGLE_OBJECT + bytes.fromhex(tools.fingerprint(canonical, "CRC-64-AVRO"))

    def decode(self, bodies: pa.Array, *_: object) -> Decoded:
        """Return the columns of some bodies (binary, without nulls)."""
        reasons: dict[int, str] = {}
        names = self._names
        nothing = [None] * len(names)
        rows = []
        for row, body in enumerate(bodies.to_pylist()):
            try:
                found = self._read(body)
                rows.append([found[name] for name in names])
            except Mismatch as mismatch:
                reasons[row] = str(mismatch)
                rows.append(nothing)
            except Exception as failure:  # noqa: BLE001 - how the library refuses bytes is not listed anywhere
                reasons[row] = shorten(f"not a record of this schema: {failure or type(failure).__name__}")
                rows.append(nothing)
        return Decoded(columns_of_rows(rows, self._schema, reasons), reasons)

    def _read(self, body: bytes) -> dict[str, Any]:
        stream = io.BytesIO(body)
        if body.startswith(self._mark):
            stream.seek(len(self._mark))
        found = self._fastavro.schemaless_reader(stream, self._reading)
        if stream.tell() != len(body):
            raise ValueError(f"{len(body) - stream.tell()} bytes follow the record")
        made: dict[str, Any] = found if self._convert is None else self._convert(found)
        return made
