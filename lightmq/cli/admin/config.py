"""``lightmq config show`` and ``lightmq config explain``: what is in force, where it came from, what a key means."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Annotated, Any

from cyclopts import App, Parameter

from lightmq.cli.examples import epilogue
from lightmq.cli.options import ConfigOptions, configuration
from lightmq.configuration import Configuration
from runtime.config import (
    ENVIRONMENT_PREFIX,
    RULE,
    ValueOrigin,
    attribute_docs,
    default_text,
    flatten,
    keys_of,
    rule_text,
    toml_text,
    type_name,
    unknown,
)
from runtime.logs import REDACTED, SECRET_KEY

config = App(
    name="config",
    help="Show the configuration in force, or explain a key.",
    help_format="plaintext",
    help_epilogue=epilogue("config"),
)
NONE = ConfigOptions()


@config.command
def show(
    prefix: Annotated[str, Parameter(help="Only keys that begin with this, for example broker.store.")] = "",
    *,
    origin: Annotated[bool, Parameter(negative=(), help="Show where each value came from.")] = False,
    changed: Annotated[bool, Parameter(negative=(), help="Only values that are not the default.")] = False,
    json_output: Annotated[bool, Parameter(name=["--json"], negative=(), help="Print one JSON object.")] = False,
    options: ConfigOptions = NONE,
) -> None:
    """Print every value in force."""
    loaded = configuration(options)
    rows = {
        key: (_visible(key, value), loaded.origins[key])
        for key, value in flatten(loaded.value)
        if key.startswith(prefix) and not (changed and loaded.origins[key].kind == "default")
    }
    if json_output:
        content = {key: _as_json(value, where, origin=origin) for key, (value, where) in rows.items()}
        sys.stdout.write(json.dumps(content, default=_plain) + "\n")
        return
    width = max((len(key) for key in rows), default=0)
    for key, (value, where) in rows.items():
        line = f"{key:<{width}} = {toml_text(value)}"
        sys.stdout.write(f"{line:<{width + 32}}  # {where}\n" if origin else line + "\n")


@config.command
def explain(
    key: Annotated[str, Parameter(help="A key, or a prefix of several.")],
    *,
    json_output: Annotated[bool, Parameter(name=["--json"], negative=(), help="One JSON object per key.")] = False,
) -> None:
    """Explain what a key does, its type, default and how to set it."""
    from lightmq.cli.outcome import CommandMisused

    known = {name: (field, declared) for name, field, declared in keys_of(Configuration)}
    wanted = [name for name in known if name == key or name.startswith(key.rstrip(".") + ".")]
    if not wanted:
        raise CommandMisused(unknown("config explain", "key", key, known))
    for name in wanted:
        field, declared = known[name]
        rule = rule_text(field.metadata.get(RULE, {}))
        variable = ENVIRONMENT_PREFIX + name.upper().replace(".", "__")
        if json_output:
            said = {
                "key": name, "meaning": _doc(name), "type": type_name(declared), "default": default_text(field),
                "allowed": rule, "environment": variable,
            }  # fmt: skip
            sys.stdout.write(json.dumps(said) + "\n")
            continue
        sys.stdout.write(
            f"{name}\n    {_doc(name)}\n    {type_name(declared)}, default {default_text(field)}"
            f"{', ' + rule if rule else ''}\n    {variable}=…   --set {name}=…\n"
        )


def _visible(key: str, value: object) -> object:
    return REDACTED if value and SECRET_KEY.search(key) and not key.endswith("_file") else value


def _as_json(value: object, where: ValueOrigin, *, origin: bool) -> Any:
    return {"value": value, "origin": str(where)} if origin else value


def _plain(value: Any) -> Any:
    """An item of a list of tables as an object, everything else as its text."""
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else str(value)


def _doc(key: str) -> str:
    from runtime.config import fields_of, is_table

    table: type = Configuration
    *sections, name = key.split(".")
    for section in sections:
        table = next(declared for field, declared in fields_of(table) if field.name == section and is_table(declared))
    return attribute_docs(table).get(name, "")
