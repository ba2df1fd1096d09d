"""Which JSON bodies fit a schema, quickly: so that one that does not is not looked for by halves.

Arrow's reader refuses a whole stream for one value of the wrong type and does not say which; msgspec judges one body at
a time and fast. The verdict only decides which way a body takes, never what becomes of it: what passes here may still
be refused by Arrow (a decimal, a time), and what does not pass may still be read one by one. Pure.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Meta
from numpy.typing import NDArray


class Sieve:
    """Judges bodies by the types of a schema."""

    def __init__(self, schema: pa.Schema) -> None:
        self._decoder = msgspec.json.Decoder(_object(list(schema)))

    def fitting(self, bodies: pa.Array) -> NDArray[np.bool_]:
        """Return which bodies are objects whose fields have the types of the schema."""
        return np.array([self._fits(body) for body in bodies.to_pylist()], bool)

    def _fits(self, body: bytes) -> bool:
        try:
            self._decoder.decode(body)
        except (msgspec.MsgspecError, RecursionError):
            return False
        return True


def _object(fields: list[pa.Field]) -> Any:
    """A struct with these fields; names that are no identifiers are encoded names of others."""
    members = [(f"f{index}", _value(field.type), None) for index, field in enumerate(fields)]
    names = {f"f{index}": field.name for index, field in enumerate(fields)}
    return msgspec.defstruct("Fields", members, rename=names, gc=False)


def _value(type_: pa.DataType) -> Any:
    """What msgspec takes for a type, null included; anything where it has no such type."""
    if pa.types.is_integer(type_):
        bound = 1 << (type_.bit_width - 1)
        # msgspec compares with 64-bit bounds only: the widest type needs none but its own.
        return Annotated[int, Meta(ge=-bound, le=bound - 1)] | None
    if pa.types.is_floating(type_):
        return float | None
    if pa.types.is_boolean(type_):
        return bool | None
    if pa.types.is_string(type_) or pa.types.is_timestamp(type_):
        return str | None
    if pa.types.is_list(type_):
        return list[_value(type_.value_type)] | None  # type: ignore[misc]
    if pa.types.is_struct(type_):
        return _object(list(type_)) | None
    return Any
