"""Writes ``docs/spark-options.md`` from the declared options: ``python -m tools.spark_options_reference``."""

from __future__ import annotations

import re
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

from spark_connector.options.option_table import ConnectionOptions, declared
from spark_connector.options.read_write import ReadOptions, WriteOptions

PAGE = Path(__file__).resolve().parent.parent / "docs" / "spark-options.md"
DECODING = {
    "decode", "decode_schema", "message_type", "decode_column", "decode_mode", "infer_schema", "infer_schema_rows",
    "schema_location",
}  # fmt: skip
"""Fields of `ReadOptions` about how bodies become columns."""


def render() -> str:
    """Return the page docs/spark-options.md."""
    connection = {item.name for item in fields(ConnectionOptions)}
    reading = {item.name for item in fields(ReadOptions)}
    parts = [
        '# Options of `format("rocketmq")`\n',
        "Generated from `spark_connector/options/read_write.py`; names are compared without case.\n",
    ]
    for title, table, skip in (
        ("Reading and writing", ConnectionOptions, set()),
        ("Reading", ReadOptions, connection | DECODING),
        ("Decoding bodies while reading", ReadOptions, reading - DECODING),
        ("Writing", WriteOptions, connection),
    ):
        parts.append(f"## {title}\n\n| option | default | meaning |\n|---|---|---|")
        for name, item in declared(table):
            if item.name not in skip:
                parts.append(f"| {_names(name, item)} | {_default(item)} | {_cell(item.metadata['text'])} |")
        parts.append("")
    return "\n".join(parts)


def _cell(text: str) -> str:
    """Text in a table, where a bar would end the cell."""
    return text.replace("|", "\\|")


def _names(name: str, item: Field[Any]) -> str:
    """Cell with an option's name and its other spellings."""
    also = ", ".join(f"`{alias}`" for alias in item.metadata["aliases"])
    return f"`{name}`" + (f" (also {also})" if also else "")


def _default(item: Field[Any]) -> str:
    """Cell with an option's default as a user would type it."""
    default = item.default
    if default is None or default in ((), frozenset()):
        return "none"
    if isinstance(default, tuple):
        return "`" + ";".join(f"{host}:{port}" for host, port in default) + "`"
    if default == "":
        return "none"
    return f"`{re.sub('^(True|False)$', lambda found: found.group().lower(), str(default))}`"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
