"""Catalog tables (`CREATE TABLE … USING rocketmq OPTIONS (…)`): how their options come back when they are used.

Spark hands a table's options over when the table is made and never again: reading it or inserting into it calls the
source with the table's schema and no options. So the schema carries them, as metadata of its first column, which Spark
keeps in the catalog. When a table is made its options come twice, `topic` and `option.topic`, among the table's
properties; what has no such twin is no option.

Invariant: options given where the table is used win over those it was made with; no secret gets into a catalog. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from spark_connector.errors import OptionError
from spark_connector.options.kafka_names import TAKEN
from spark_connector.options.option_table import ConnectionOptions, spellings
from spark_connector.options.read_write import ReadOptions, WriteOptions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

METADATA_KEY = "rocketmq.options"
PREFIX = "option."
PROVIDER, OWNER = "provider", "owner"
"""Spark says both of every table, and of nothing else."""
NEVER_KEPT = "secretkey"
WHAT_IS_READ = ("topic", "topic_pattern", "assign", "mqtt_filter")
"""Just one of these is given."""


def is_table(options: Mapping[str, str]) -> bool:
    """Whether these are the properties of a table that is being made."""
    return PROVIDER in options and (OWNER in options or any(name.startswith(PREFIX) for name in options))


def own_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options among a table's properties; any other options as they are."""
    if not is_table(options):
        return dict(options)
    names = {name.removeprefix(PREFIX) for name in options if name.startswith(PREFIX)}
    return {name: options[PREFIX + name] for name in names}


def keep_options(columns: StructType, options: Mapping[str, str]) -> StructType:
    """The columns of a new table, which carry its options; raises OptionError for one that must not be kept."""
    if any(name.lower() == NEVER_KEPT for name in options):
        raise OptionError(
            "option 'secretKey' would be readable in the catalog for everybody: make a temporary view instead "
            "(CREATE TEMPORARY VIEW … USING rocketmq)."
        )
    from pyspark.sql.types import StructField, StructType

    first, *others = columns.fields
    metadata = dict(first.metadata or {}) | {METADATA_KEY: json.dumps(dict(sorted(options.items())))}
    return StructType([StructField(first.name, first.dataType, first.nullable, metadata), *others])


def with_kept_options(options: Mapping[str, str], columns: StructType, side: type[ConnectionOptions]) -> dict[str, str]:
    """Options of a use together with those of the table, if `columns` are a table's; `side` is what they are for.

    A table is read and written, so it may have options of both sides.
    """
    given = own_options(options)
    kept = next((found for field in columns.fields if (found := (field.metadata or {}).get(METADATA_KEY))), None)
    if kept is None:
        return given
    anew = {_meant(name, side) for name in given}
    return {
        name: value for name, value in of_side(json.loads(kept), side).items() if _meant(name, side) not in anew
    } | given


def _meant(name: str, side: type[ConnectionOptions]) -> str:
    """Which option a name means; the options that say what is read are one."""
    lower = name.lower()
    found = spellings(side).get(TAKEN.get(lower, lower))
    if found is None:
        return lower
    return WHAT_IS_READ[0] if side is ReadOptions and found.name in WHAT_IS_READ else found.name


def of_side(options: Mapping[str, str], side: type[ConnectionOptions]) -> dict[str, str]:
    """The options without those that only the other side has; what no side has stays, to be refused by name."""
    own, others = spellings(side), spellings(ReadOptions if side is WriteOptions else WriteOptions)
    return {name: value for name, value in options.items() if name.lower() in own or name.lower() not in others}
