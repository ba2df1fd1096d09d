"""Configuration: declared tables, filled from defaults < TOML file < environment < flags.

A table is a frozen, keyword-only dataclass; a field is a value, another table or a list of tables. The string after a
field is its documentation and nothing but the declaration says what exists: a key nobody declared is an error that
names the nearest one that is. Keys are written with dots (``broker.store.segment_bytes``), in TOML as nested tables, in
the environment as ``LIGHTMQ_BROKER__STORE__SEGMENT_BYTES``. Variables of that prefix without a double underscore are
not configuration.

Invariant: every value of a loaded table passed its type and its rule, and ``origins`` says where it came from.

Lists of tables: ``[[bridge.connections]]`` in TOML, ``tuple[Connection, ...]`` in a declared table.

An item is a table like any other: every key is declared, typed and ruled, an unknown one names the nearest; a field
without a default must be given. Lists may hold lists. In the environment and in a flag the whole list is one value,
written as TOML writes it in one line: ``[{name = "a", port = 1883}]``.
Invariant: an error's path names the item by its place, counted from 0. Pure.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import tomllib
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from remoting.protocol.errors import LocalMisuse
from runtime.config.values import BadValueError, check_rule, from_text, from_toml, list_table

T = TypeVar("T")

ENVIRONMENT_PREFIX = "LIGHTMQ_"
RULE = "lightmq.rule"
NAMES_SHOWN_MAX = 12


class ConfigError(LocalMisuse):
    """The configuration cannot be used; the text names the source, the key and what to do."""


@dataclass(frozen=True, slots=True)
class ValueOrigin:
    """Where a value came from: ``kind`` is default, file, environment or flag; ``detail`` names it."""

    kind: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.detail}".rstrip()


DEFAULT = ValueOrigin("default")


@dataclass(frozen=True, slots=True)
class Flag:
    """One value given on the command line: the dotted key, the flag's own name for messages, the value or its text."""

    key: str
    name: str
    value: object


@dataclass(frozen=True, slots=True)
class Loaded(Generic[T]):
    """A filled table and the origin of each of its dotted keys."""

    value: T
    origins: Mapping[str, ValueOrigin]


def setting(
    default: T, *, minimum: float | None = None, maximum: float | None = None, choices: Sequence[object] = ()
) -> T:
    """Declare a field with a rule: ``port: int = setting(1883, minimum=0, maximum=65535)``."""
    rule = {"minimum": minimum, "maximum": maximum, "choices": tuple(choices)}
    field: T = dataclasses.field(default=default, metadata={RULE: rule})
    return field


def fields_of(table: type) -> Iterator[tuple[dataclasses.Field[Any], Any]]:
    """The fields of a table with their resolved types, in order of declaration."""
    hints = _hints(table)
    for field in dataclasses.fields(table):
        yield field, hints[field.name]


@functools.cache
def _hints(table: type) -> dict[str, Any]:
    return typing.get_type_hints(table)


def is_table(declared: object) -> bool:
    """Whether a field's type is another table."""
    return isinstance(declared, type) and dataclasses.is_dataclass(declared)


def keys_of(table: type, prefix: str = "") -> Iterator[tuple[str, dataclasses.Field[Any], Any]]:
    """Every dotted key below a table: (key, field, declared type)."""
    for field, declared in fields_of(table):
        key = prefix + field.name
        if is_table(declared):
            yield from keys_of(declared, key + ".")
        else:
            yield key, field, declared


def load(
    table: type[T],
    *,
    section: str = "",
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Iterable[Flag] = (),
) -> Loaded[T]:
    """Fill ``table`` from its sources. Raises ConfigError.

    With ``section`` the table is the part of the file (and of the environment) under that name, and what other
    processes keep under other names is left alone; without it the table is the whole file and must know every key.
    Keys in ``flags`` and in ``origins`` are relative to ``table``.
    """
    values: dict[str, Any] = {}
    origins: dict[str, ValueOrigin] = {}
    declared = {key: (field, kind) for key, field, kind in keys_of(table)}

    def put(key: str, parse: Any, raw: object, origin: ValueOrigin) -> None:
        field, kind = declared[key]
        try:
            value = parse(kind, raw)
            check_rule(field.metadata.get(RULE, {}), value)
        except BadValueError as error:
            path = f"{section + '.' if section else ''}{key}{error.path}"
            raise ConfigError(f"{_where(origin)}: {path} {error}") from None
        values[key], origins[key] = value, origin

    if file is not None:
        for key, raw in _flatten(_read(file, section), table, f"{file}", section):
            put(key, _from_toml, raw, ValueOrigin("file", str(file)))
    for name, key, text in _from_environment(environ or {}, declared, section):
        put(key, _from_text, text, ValueOrigin("environment", name))
    for flag in flags:
        if flag.key not in declared:
            raise ConfigError(unknown(flag.name, "key", flag.key, declared))
        put(flag.key, _from_flag, flag.value, ValueOrigin("flag", flag.name))
    loaded = _build(table, values, "")
    return Loaded(loaded, {key: origins.get(key, DEFAULT) for key in declared})


def _where(origin: ValueOrigin) -> str:
    return origin.detail or origin.kind


def _from_flag(declared: object, raw: object) -> Any:
    if isinstance(raw, str):
        return _from_text(declared, raw)
    return raw if isinstance(raw, (Path, tuple)) or raw is None else from_toml(declared, raw)


def _from_toml(declared: object, raw: object) -> Any:
    if list_table(declared) is None:
        return from_toml(declared, raw)

    return list_from_toml(declared, raw)


def _from_text(declared: object, text: str) -> Any:
    if list_table(declared) is None:
        return from_text(declared, text)

    return list_from_text(declared, text)


def _read(file: Path, section: str) -> Mapping[str, Any]:
    try:
        with file.open("rb") as stream:
            document = tomllib.load(stream)
    except OSError as error:
        raise ConfigError(f"cannot read configuration file {file}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"configuration file {file} is not valid TOML: {error}") from error
    if not section:
        return document
    part = document.get(section, {})
    if not isinstance(part, dict):
        raise ConfigError(f"{file}: {section} must be a table, not {part!r}")
    return part


def _flatten(document: Mapping[str, Any], table: type, source: str, prefix: str) -> Iterator[tuple[str, object]]:
    """Dotted keys (relative to ``table``) and raw values of a TOML table. Raises ConfigError on a key not declared."""
    known = {field.name: declared for field, declared in fields_of(table)}
    for name, raw in document.items():
        path = f"{prefix}.{name}" if prefix else name
        if name not in known:
            what = "section" if isinstance(raw, dict) else "key"
            raise ConfigError(unknown(source, what, path, [f"{prefix}.{k}" if prefix else k for k in known]))
        if not is_table(known[name]):
            yield name, raw
        elif isinstance(raw, dict):
            for key, value in _flatten(raw, known[name], source, path):
                yield f"{name}.{key}", value
        else:
            raise ConfigError(f"{source}: {path} is a section and cannot be set to {raw!r}")


def _from_environment(
    environ: Mapping[str, str], declared: Iterable[str], section: str
) -> Iterator[tuple[str, str, str]]:
    """(variable, dotted key relative to the table, text) of each variable that is configuration."""
    head = ENVIRONMENT_PREFIX + (section.upper() + "__" if section else "")
    by_variable = {head + key.upper().replace(".", "__"): key for key in declared}
    for variable in sorted(environ):
        if not variable.startswith(head) or "__" not in variable:
            continue
        key = by_variable.get(variable)
        if key is None:
            raise ConfigError(unknown("environment", "variable", variable, by_variable))
        yield variable, key, environ[variable]


def unknown(source: str, what: str, name: str, known: Iterable[str]) -> str:
    """The sentence for a name nobody declared, with the nearest declared one."""
    candidates = list(known)
    section, _, leaf = name.rpartition(".")
    beside = [candidate for candidate in candidates if candidate.rpartition(".")[0] == section]
    near = _nearest(leaf, beside) or _nearest(leaf, candidates)
    hint = f"did you mean {near}?" if near else "known: " + ", ".join(_heads(beside or candidates))
    return f"{source}: unknown {what} {name}; {hint}"


def _nearest(leaf: str, candidates: Iterable[str]) -> str:
    """The candidate whose last part is most like ``leaf``; empty when none is."""
    by_leaf: dict[str, str] = {}
    for candidate in candidates:
        by_leaf.setdefault(candidate.rpartition(".")[2], candidate)
    near = difflib.get_close_matches(leaf, by_leaf, n=1, cutoff=0.6)
    return by_leaf[near[0]] if near else ""


def _heads(names: Sequence[str]) -> list[str]:
    """The names, or only their first parts where listing all would fill the screen."""
    if len(names) <= NAMES_SHOWN_MAX:
        return sorted(names)
    heads = sorted({name.partition(".")[0] for name in names})
    return heads if len(heads) > 1 else [*sorted(names)[:NAMES_SHOWN_MAX], "…"]


def _build(table: type[T], values: Mapping[str, Any], prefix: str) -> T:
    arguments: dict[str, Any] = {}
    for field, declared in fields_of(table):
        key = prefix + field.name
        if is_table(declared):
            arguments[field.name] = _build(declared, values, key + ".")
        elif key in values:
            arguments[field.name] = values[key]
    try:
        return table(**arguments)
    except (ValueError, LocalMisuse) as error:  # a table's own __post_init__ checks what one field alone cannot know
        raise ConfigError(f"{prefix.rstrip('.') or table.__name__}: {error}") from error


def flatten(value: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Every dotted key of a filled table with its value, in order of declaration."""
    for field, declared in fields_of(type(value)):
        inner = getattr(value, field.name)
        if is_table(declared):
            yield from flatten(inner, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, inner


def render_markdown(tables: Sequence[tuple[str, type]]) -> str:
    """The reference page of (section name, table) pairs, from the declarations alone."""
    from runtime.config.page import render

    return render(tables)


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
