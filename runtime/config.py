"""Configuration: declared tables, filled from defaults < TOML file < environment < flags, and their reference page.

A table is a frozen, keyword-only dataclass; a field is a value, another table or a list of tables. The string after a
field is its documentation, read from the source by ``ast`` for the reference page. Only declared keys exist: an
undeclared one is an error that names the nearest declared one. Keys are written with dots
(``broker.store.segment_bytes``), in TOML as nested tables, in the environment as
``LIGHTMQ_BROKER__STORE__SEGMENT_BYTES``. Variables of that prefix without a double underscore are not configuration.

A value's type is int, float, bool, str, Path, tuple[str, ...], or one of them ``| None``. A TOML value must have the
type already (``"5"`` is not a number); text from the environment or from a flag is parsed. A list of strings is written
there as ``a,b`` or as in TOML, ``["a", "b"]``. A field with a form (`FORMS`) takes only values of that form, whatever
source they come from, so that a malformed address is refused at the start and not by the first who dials it.

Lists of tables are ``[[bridge.connections]]`` in TOML and ``tuple[Connection, ...]`` in a declared table. A field of an
item without a default is required. Lists may contain lists. In the environment and in a flag the whole list is one
value, written as a TOML inline array: ``[{name = "a", port = 1883}]``. An error's path gives the item's index from 0.

Invariants: every value of a loaded table has passed its type and its rule, and ``origins`` has its source;
everything on the page comes from the declarations, so the page cannot differ from the program.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import functools
import inspect
import ipaddress
import math
import textwrap
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from remoting.protocol.addresses import split_address
from remoting.protocol.errors import LocalMisuse

WORDS = dict.fromkeys(("true", "yes", "on", "1"), True) | dict.fromkeys(("false", "no", "off", "0"), False)
"""Truth values as text."""
EXPECTED = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a string",
    Path: "a path",
    tuple: "a list of strings",
}


class BadValueError(ValueError):
    """The value does not fit; the text is the reason, without the key. ``path`` leads into a list of tables."""

    def __init__(self, text: str, path: str = "") -> None:
        super().__init__(text)
        self.path = path


def base_type(declared: object) -> tuple[type, bool]:
    """The plain type of a declared one, and whether None is allowed: ``Path | None`` -> ``(Path, True)``."""
    if isinstance(declared, types.UnionType) or typing.get_origin(declared) is typing.Union:
        plain = [argument for argument in typing.get_args(declared) if argument is not types.NoneType]
        assert len(plain) == 1, declared
        return base_type(plain[0])[0], True
    origin = typing.get_origin(declared) or declared
    assert origin in EXPECTED, f"configuration cannot hold {declared!r}"
    assert isinstance(origin, type)
    return origin, False


def list_table(declared: object) -> type | None:
    """The table of a list of tables (``tuple[Rule, ...]``), None for every other type."""
    if typing.get_origin(declared) is not tuple:
        return None
    item = typing.get_args(declared)[0]
    return item if isinstance(item, type) and dataclasses.is_dataclass(item) else None


def type_name(declared: object) -> str:
    """How the reference page writes a type."""
    if list_table(declared) is not None:
        return "list of tables"
    plain, optional = base_type(declared)
    name = (
        "list of strings" if plain is tuple else {"str": "string", "Path": "path"}.get(plain.__name__, plain.__name__)
    )
    return f"{name}, optional" if optional else name


def strings_from_text(text: str) -> tuple[str, ...]:
    """A list of strings in one line: separated by commas, or a TOML array. Raises BadValueError for half an array."""
    text = text.strip()
    in_brackets = text.startswith("[") and text.endswith("]")
    if in_brackets and (set(text) & {'"', "'"} or not text[1:-1].strip()):
        try:
            items = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError as error:
            raise BadValueError(f'is no list as TOML writes it, ["a", "b"]: {error}') from None
        return cast("tuple[str, ...]", from_toml(tuple[str, ...], items))
    items = tuple(filter(None, (item.strip() for item in text.split(","))))
    if set(text) & {'"', "'"} or (in_brackets and not all(_is_bracketed_address(item) for item in items)):
        raise BadValueError(f'is a,b or ["a", "b"], not {text}')
    return items


def _is_bracketed_address(text: str) -> bool:
    """Whether it is an IPv6 address in brackets, with or without a port behind them."""
    host, bracket, port = text.removeprefix("[").partition("]")
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return text.startswith("[") and bool(bracket) and (not port or port.startswith(":"))


def _check_address(text: str) -> None:
    split_address(text)


def _check_member(text: str) -> None:
    name, separator, address = text.partition("@")
    if not separator or not name:
        raise ValueError(f"{text!r} is not of the form name@host:port")
    split_address(address)


FORMS: dict[str, Callable[[str], object]] = {"host:port": _check_address, "name@host:port": _check_member}
"""What a string, or each string of a list, may be required to be; each raises ValueError for one that is not."""


def from_toml(declared: object, value: object) -> Any:
    """A TOML value as the declared type. Raises BadValueError."""
    if list_table(declared) is not None:
        return list_from_toml(declared, value)
    plain, _ = base_type(declared)
    if plain is bool and isinstance(value, bool):
        return value
    if plain in (int, float) and isinstance(value, (int, float)) and not isinstance(value, bool):
        return _number(plain, value)
    if plain is str and isinstance(value, str):
        return value
    if plain is Path and isinstance(value, str) and value:
        return Path(value).expanduser()
    if plain is tuple and isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    raise BadValueError(f"must be {EXPECTED[plain]}, not {value!r}")


def _number(plain: type, value: float) -> float:
    if plain is float:
        return float(value)
    if isinstance(value, float):
        raise BadValueError(f"must be a whole number, not {value!r}")
    return value


def from_text(declared: object, text: str) -> Any:
    """Text of an environment variable or a flag as the declared type; empty text is None where None is allowed."""
    if list_table(declared) is not None:
        return list_from_text(declared, text)
    plain, optional = base_type(declared)
    stripped = text.strip()
    if optional and not stripped:
        return None
    if plain is str:
        return text
    try:
        value = _PARSERS[plain](stripped)
    except BadValueError:
        raise
    except (ValueError, KeyError):
        raise BadValueError(f"must be {EXPECTED[plain]}, not {stripped!r}") from None
    if plain is float and not math.isfinite(value):
        raise BadValueError(f"must be a finite number, not {stripped!r}")
    if plain is Path and not stripped:
        raise BadValueError("must be a path, not empty")
    return value


_PARSERS: dict[type, Callable[[str], Any]] = {
    int: int,
    float: float,
    bool: lambda text: WORDS[text.lower()],
    Path: lambda text: Path(text).expanduser(),
    tuple: strings_from_text,
}


def check_rule(rule: Mapping[str, Any], value: Any) -> None:
    """Hold ``value`` against a field's declared rule (minimum, maximum, choices, form). Raises BadValueError."""
    if value is None:
        return
    minimum, maximum, choices = rule.get("minimum"), rule.get("maximum"), rule.get("choices")
    if minimum is not None and value < minimum:
        raise BadValueError(f"must be at least {minimum}, not {value}")
    if maximum is not None and value > maximum:
        raise BadValueError(f"must be at most {maximum}, not {value}")
    if choices and value not in choices:
        raise BadValueError(f"must be one of {', '.join(map(str, choices))}, not {value!r}")
    form = rule.get("form") or ""
    for text in (value if isinstance(value, tuple) else (value,)) if form and value else ():
        try:
            FORMS[form](text)
        except ValueError as error:
            raise BadValueError(f"must be {form}: {error}") from None


def rule_text(rule: Mapping[str, Any]) -> str:
    """A declared rule as the reference page writes it; empty when there is none."""
    minimum, maximum, choices = rule.get("minimum"), rule.get("maximum"), rule.get("choices")
    if choices:
        return "one of " + ", ".join(map(str, choices))
    if minimum is not None and maximum is not None:
        return f"{minimum} to {maximum}"
    if minimum is not None:
        return f"at least {minimum}"
    if rule.get("form"):
        return str(rule["form"])
    return f"at most {maximum}" if maximum is not None else ""


T = TypeVar("T")

ENVIRONMENT_PREFIX = "LIGHTMQ_"
RULE, LIVE = "lightmq.rule", "lightmq.live"
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
    default: T,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: Sequence[object] = (),
    form: str = "",
    live: bool = False,
) -> T:
    """Declare a field with a rule: ``port: int = setting(1883, minimum=0, maximum=65535)``.

    ``form`` is one of `FORMS`; an empty string passes it. ``live``: the value may change while the process runs
    (`assign`).
    """
    rule = {"minimum": minimum, "maximum": maximum, "choices": tuple(choices), "form": form}
    field: T = dataclasses.field(default=default, metadata={RULE: rule, LIVE: live})
    return field


def parsed(table: type, key: str, text: str) -> Any:
    """The value of a declared key from its text. Raises ConfigError for an unknown key and for a wrong value."""
    declared = {name: (field, kind) for name, field, kind in keys_of(table)}
    if key not in declared:
        raise ConfigError(unknown("change", "key", key, declared))
    field, kind = declared[key]
    try:
        value = from_text(kind, text)
        check_rule(field.metadata.get(RULE, {}), value)
    except BadValueError as error:
        raise ConfigError(f"{key} {error}") from None
    return value


def live_keys(table: type) -> frozenset[str]:
    """The keys of a table whose values may change while the process runs."""
    return frozenset(key for key, field, _kind in keys_of(table) if field.metadata.get(LIVE))


def with_values(value: T, changes: Mapping[str, Any]) -> T:
    """A copy of a filled table, of its inner tables too, with some values changed. Raises ConfigError."""
    values = dict(flatten(value))
    values.update(changes)
    return _build(type(value), values, "")


def assign(value: object, key: str, new: object) -> None:
    """Change a live value of a filled table in place: everything that reads it at each use has it from now on."""
    assert key in live_keys(type(value)), key
    *path, name = key.split(".")
    for step in path:
        value = getattr(value, step)
    object.__setattr__(value, name, new)  # frozen for everybody else


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
            raise ConfigError(f"{origin.detail or origin.kind}: {path} {error}") from None
        values[key], origins[key] = value, origin

    if file is not None:
        for key, raw in _flatten(_read(file, section), table, f"{file}", section):
            put(key, from_toml, raw, ValueOrigin("file", str(file)))
    for name, key, text in _from_environment(environ or {}, declared, section):
        put(key, from_text, text, ValueOrigin("environment", name))
    for flag in flags:
        if flag.key not in declared:
            raise ConfigError(unknown(flag.name, "key", flag.key, declared))
        put(flag.key, _from_flag, flag.value, ValueOrigin("flag", flag.name))
    loaded = _build(table, values, "")
    return Loaded(loaded, {key: origins.get(key, DEFAULT) for key in declared})


def _from_flag(declared: object, raw: object) -> Any:
    if isinstance(raw, str):
        return from_text(declared, raw)
    return raw if isinstance(raw, (Path, tuple)) or raw is None else from_toml(declared, raw)


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
    """The sentence for an undeclared name, with the nearest declared one."""
    candidates = list(known)
    section, _, leaf = name.rpartition(".")
    beside = [candidate for candidate in candidates if candidate.rpartition(".")[0] == section]
    namesake = next((candidate for candidate in candidates if candidate.rpartition(".")[2] == leaf), "")
    near = namesake or _nearest(leaf, beside) or _nearest(leaf, candidates)
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
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and name not in values:
            raise BadValueError("is missing", f"{path}.{name}")
    try:
        return table(**values)
    except (ValueError, LocalMisuse) as error:  # the table's own __post_init__
        raise BadValueError(f"cannot be used: {error}", path) from error


def _value(field: dataclasses.Field[Any], declared: object, raw: object, path: str) -> Any:
    try:
        assert not is_table(declared), f"{path}: a table inside a list of tables has values and lists only"
        value = from_toml(declared, raw)
        check_rule(field.metadata.get(RULE, {}), value)
    except BadValueError as error:
        raise BadValueError(str(error), path + error.path) from None
    return value


def attribute_docs(table: type) -> dict[str, str]:
    """Field name -> the string literal under it, for a table and its bases; whitespace is folded."""
    docs: dict[str, str] = {}
    for cls in reversed(table.__mro__):
        if dataclasses.is_dataclass(cls):
            docs.update(_own_docs(cls))
    return docs


def _own_docs(cls: type) -> Iterator[tuple[str, str]]:
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef), cls
    for before, after in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(before, ast.AnnAssign)
            and isinstance(before.target, ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
            and isinstance(after.value.value, str)
        ):
            yield before.target.id, " ".join(after.value.value.split())


def default_text(field: dataclasses.Field[object]) -> str:
    """A field's default as TOML would write it."""
    if field.default_factory is not dataclasses.MISSING:
        return toml_text(field.default_factory())
    return "(required)" if field.default is dataclasses.MISSING else toml_text(field.default)


def toml_text(value: object) -> str:
    """A value as TOML writes it; None as the word ``unset``."""
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, Path)):
        return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'
    if dataclasses.is_dataclass(value):
        fields = ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
        return "{" + ", ".join(f"{name} = {toml_text(inner)}" for name, inner in fields if inner is not None) + "}"
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(toml_text(item) for item in value) + "]"
    return str(value)
