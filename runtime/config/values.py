"""One configuration value: from what a source wrote to the declared type, with the rule it must obey.

Pure. The types are int, float, bool, str, Path, tuple[str, ...], and each of them ``| None``; lists of tables have
``config_lists``. A TOML value must have the type already (``"5"`` is not a number); text from the environment or from a
flag is parsed.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

TRUE_WORDS = frozenset({"true", "yes", "on", "1"})
FALSE_WORDS = frozenset({"false", "no", "off", "0"})
EXPECTED = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a string",
    Path: "a path",
    tuple: "a list of strings",
}


class BadValueError(ValueError):
    """The value does not fit; the text says why, without naming the key. ``path`` leads into a list of tables."""

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


def from_toml(declared: object, value: object) -> Any:
    """A TOML value as the declared type. Raises BadValueError."""
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
    plain, optional = base_type(declared)
    stripped = text.strip()
    if optional and not stripped:
        return None
    return _PARSERS[plain](text if plain is str else stripped)


def _parse_int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise BadValueError(f"must be a whole number, not {text!r}") from None


def _parse_float(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise BadValueError(f"must be a number, not {text!r}") from None
    if not math.isfinite(number):
        raise BadValueError(f"must be a finite number, not {text!r}")
    return number


def _parse_bool(text: str) -> bool:
    word = text.lower()
    if word not in TRUE_WORDS | FALSE_WORDS:
        raise BadValueError(f"must be true or false, not {text!r}")
    return word in TRUE_WORDS


def _parse_path(text: str) -> Path:
    if not text:
        raise BadValueError("must be a path, not empty")
    return Path(text).expanduser()


def _parse_list(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (item.strip() for item in text.split(","))))


_PARSERS: dict[type, Callable[[str], object]] = {
    int: _parse_int,
    float: _parse_float,
    bool: _parse_bool,
    str: str,
    Path: _parse_path,
    tuple: _parse_list,
}


def check_rule(rule: Mapping[str, Any], value: Any) -> None:
    """Hold ``value`` against a field's declared rule (minimum, maximum, choices). Raises BadValueError."""
    if value is None:
        return
    minimum, maximum, choices = rule.get("minimum"), rule.get("maximum"), rule.get("choices")
    if minimum is not None and value < minimum:
        raise BadValueError(f"must be at least {minimum}, not {value}")
    if maximum is not None and value > maximum:
        raise BadValueError(f"must be at most {maximum}, not {value}")
    if choices and value not in choices:
        raise BadValueError(f"must be one of {', '.join(map(str, choices))}, not {value!r}")


def rule_text(rule: Mapping[str, Any]) -> str:
    """A declared rule as the reference page writes it; empty when there is none."""
    minimum, maximum, choices = rule.get("minimum"), rule.get("maximum"), rule.get("choices")
    if choices:
        return "one of " + ", ".join(map(str, choices))
    if minimum is not None and maximum is not None:
        return f"{minimum} to {maximum}"
    if minimum is not None:
        return f"at least {minimum}"
    return f"at most {maximum}" if maximum is not None else ""
