"""Options that every server command has: the configuration file, single keys, and the logs; and checks of arguments.

Invariant: a value given on the command line wins over the environment and the file, whichever option gave it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from lightmq.cli.outcome import CommandMisused
from lightmq.configuration import Configuration, load_configuration
from remoting.protocol.records.topics import validate_filter, validate_topic_name
from runtime.config import Flag, Loaded

Json = Annotated[bool, Parameter(name=["--json"], negative=(), help="Print what was done as a JSON object.")]
"""For commands that change something."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ConfigOptions:
    """The sources of the configuration."""

    config: Annotated[Path | None, Parameter(name=["--config", "-c"], help="Configuration file (TOML).")] = None
    values: Annotated[
        list[str], Parameter(name=["--set"], negative=(), help="Any key: --set broker.limits.topics_max=9.")
    ] = field(default_factory=list)
    log_level: Annotated[str | None, Parameter(help="debug, info, warning or error.")] = None
    log_json: Annotated[bool, Parameter(negative=(), help="Write logs as JSON.")] = False


def configuration(options: ConfigOptions, flags: Sequence[Flag] = ()) -> Loaded[Configuration]:
    """The configuration in force for a command with these options and flags. Raises ConfigError."""
    given = [*map(_parse_set, options.values)]
    if options.log_level is not None:
        given.append(Flag("logs.level", "--log-level", options.log_level))
    if options.log_json:
        given.append(Flag("logs.json", "--log-json", value=True))
    given += [flag for flag in flags if flag.value is not None]
    return load_configuration(options.config, os.environ, given)


def _parse_set(text: str) -> Flag:
    key, separator, value = text.partition("=")
    if not separator:
        raise CommandMisused(f"--set {text}: write it as KEY=VALUE, for example --set logs.level=debug")
    return Flag(key.strip(), f"--set {key.strip()}", value)


def check_qos(qos: int) -> None:
    """Raises CommandFailed unless it is 0, 1 or 2."""
    if qos not in (0, 1, 2):
        raise CommandMisused(f"--qos must be 0, 1 or 2, not {qos}")


def check_topic(topic: str) -> None:
    """Raises CommandFailed unless messages can be published to it."""
    complaint = validate_topic_name(topic)
    if complaint:
        raise CommandMisused(f"topic {topic!r} cannot be published to: {complaint}")


def check_filter(topic_filter: str) -> None:
    """Raises CommandFailed unless it is a topic filter."""
    complaint = validate_filter(topic_filter)
    if complaint:
        raise CommandMisused(f"{topic_filter!r} is not a topic filter: {complaint}")
