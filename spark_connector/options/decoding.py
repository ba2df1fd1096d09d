"""The options of `decode`: what bodies are, which columns they become, and what is done with one that is not that.

Invariant: combinations that cannot work are refused before any broker is asked. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_connector.errors import OptionError
from spark_connector.options import parsers
from spark_connector.options.option_table import ConnectionOptions, option, option_name

PERMISSIVE, FAILFAST = "permissive", "failfast"
FORMATS = ("json", "avro", "protobuf", "sparkplug")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeOptions(ConnectionOptions):
    """How bodies become columns."""

    decode: str | None = option(
        parsers.one_of(*FORMATS),
        None,
        "What bodies are: `json`, `avro`, `protobuf` or `sparkplug` (Sparkplug B). Their fields become typed columns "
        "beside the message columns, and `_corrupt` says of a body that is something else why. See "
        "[howto/decode.md](howto/decode.md).",
    )
    decode_schema: str | None = option(
        str,
        None,
        "What the fields are. `json`: Spark SQL columns (`celsius double, at timestamp`). `avro`: the schema's JSON, "
        "or the path of a file with it. `protobuf`: the path of a descriptor set (`protoc --include_imports "
        "--descriptor_set_out`).",
    )
    message_type: str | None = option(
        str, None, "With `protobuf`: full name of the message that a body is (`plant.v1.Reading`)."
    )
    decode_column: str | None = option(
        str,
        None,
        "Put all fields into one struct column of this name instead of a column each; needed where a field has the "
        "name of a message column.",
    )
    decode_mode: str = option(
        parsers.one_of(PERMISSIVE, FAILFAST),
        PERMISSIVE,
        "`permissive`: a body that does not fit keeps its row, with nulls and the reason in `_corrupt`. `failfast`: it "
        "fails the query, naming queue and offset.",
        aliases=("mode",),
    )
    infer_schema: bool = option(
        parsers.flag,
        False,
        "With `json`: find out the fields from the newest messages when the query is planned. A stream also needs "
        "`schemaLocation`.",
        aliases=("includeSchema",),
    )
    infer_schema_rows: int = option(parsers.positive, 1_000, "How many of the newest messages `inferSchema` looks at.")
    schema_location: str | None = option(
        str,
        None,
        "File on the driver where `inferSchema` keeps what it found: written once, read by every later start, so that "
        "a query has the same columns for ever. Delete it to look anew.",
    )


def check_decoding(options: DecodeOptions) -> None:
    """Raise OptionError for options of decoding that do not go together."""
    kind = options.decode
    given = [
        name
        for name, default in (
            ("decode_schema", None),
            ("message_type", None),
            ("decode_column", None),
            ("infer_schema", False),
            ("schema_location", None),
        )
        if getattr(options, name) != default
    ]
    if kind is None:
        if given:
            raise OptionError(f"option {option_name(given[0])!r} needs the option 'decode': {', '.join(FORMATS)}")
        return
    for name, kinds in (
        ("message_type", ("protobuf",)),
        ("infer_schema", ("json",)),
        ("schema_location", ("json",)),
        ("decode_schema", ("json", "avro", "protobuf")),
    ):
        if name in given and kind not in kinds:
            raise OptionError(f"option {option_name(name)!r} is for 'decode' = {' and '.join(kinds)}, not {kind}")
    if options.infer_schema and options.decode_schema is not None:
        raise OptionError("set one of the options 'decodeSchema' and 'inferSchema', not both")
    if options.schema_location is not None and not options.infer_schema:
        raise OptionError("option 'schemaLocation' keeps what 'inferSchema' = true finds: set that too")
    if kind in {"avro", "protobuf"} and options.decode_schema is None:
        raise OptionError(f"option 'decode' = {kind} needs the option 'decodeSchema'")
    if kind == "protobuf" and options.message_type is None:
        raise OptionError("option 'decode' = protobuf needs the option 'messageType', the full name of a message")
