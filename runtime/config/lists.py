"""Lists of tables: ``[[bridge.connections]]`` in TOML, ``tuple[Connection, ...]`` in a declared table.

An item is a table like any other: every key is declared, typed and ruled, an unknown one names the nearest; a field
without a default must be given. Lists may hold lists. In the environment and in a flag the whole list is one value,
written as TOML writes it in one line: ``[{name = "a", port = 1883}]``.
Invariant: an error's path names the item by its place, counted from 0. Pure.
"""

from __future__ import annotations

import dataclasses
import tomllib
from typing import Any

from remoting.protocol.errors import LocalMisuse
from runtime.config.tables import RULE, fields_of, is_table, unknown
from runtime.config.values import BadValueError, check_rule, from_toml, list_table


def list_from_text(declared: object, text: str) -> tuple[Any, ...]:
    """A list written in one line; empty text is the empty list. Raises BadValueError."""
    if not text.strip():
        return ()
    try:
        document = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError as error:
        raise BadValueError(f'is a list of tables as TOML writes it, [{{name = "a"}}]: {error}') from None
    return list_from_toml(declared, document["value"])


def list_from_toml(declared: object, raw: object) -> tuple[Any, ...]:
    """A TOML array of tables as the declared tables. Raises BadValueError with the path of what is wrong."""
    table = list_table(declared)
    assert table is not None, declared
    if not isinstance(raw, list) or not all(isinstance(item, dict) for item in raw):
        raise BadValueError(f"must be a list of tables, not {raw!r}")
    return tuple(_item(table, item, f"[{index}]") for index, item in enumerate(raw))


def _item(table: type, raw: dict[str, Any], path: str) -> Any:
    known = {field.name: (field, declared) for field, declared in fields_of(table)}
    values = {}
    for name, value in raw.items():
        if name not in known:
            text = unknown("", "key", name, known)
            raise BadValueError(f"is not understood{text}", path)
        values[name] = _value(*known[name], value, f"{path}.{name}")
    for name, (field, _declared) in known.items():
        if name not in values and _required(field):
            raise BadValueError("is missing", f"{path}.{name}")
    try:
        return table(**values)
    except (ValueError, LocalMisuse) as error:  # the table's own __post_init__
        raise BadValueError(f"cannot be used: {error}", path) from error


def _value(field: dataclasses.Field[Any], declared: object, raw: object, path: str) -> Any:
    try:
        if list_table(declared) is not None:
            return list_from_toml(declared, raw)
        assert not is_table(declared), f"{path}: a table inside a list of tables has values and lists only"
        value = from_toml(declared, raw)
        check_rule(field.metadata.get(RULE, {}), value)
    except BadValueError as error:
        raise BadValueError(str(error), path + error.path) from None
    return value


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
