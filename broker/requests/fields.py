"""Reading the header fields and JSON bodies of RocketMQ's requests as leniently as its real clients need.

Values arrive as text (the header codec turns numbers and booleans into text); the C++ client writes booleans as "0" and
"1". A field that is missing or not a number is Refused with its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from remoting.protocol.errors import Refused, RemoteViolation
from remoting.protocol.frames import fastjson
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command

TRUE = frozenset({"1", "true", "True", "TRUE"})


def text(fields: Mapping[str, str], name: str) -> str:
    """A required field."""
    value = fields.get(name)
    if value is None:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"the field {name} is missing")
    return value


def number(fields: Mapping[str, str], name: str, default: int | None = None) -> int:
    """A number; `default` when the field is missing or empty, Refused when there is no default."""
    value = fields.get(name)
    if value is None or value == "":
        if default is None:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"the field {name} is missing")
        return default
    try:
        return int(value)
    except ValueError:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"the field {name} is not a number: {value!r}") from None


def flag(fields: Mapping[str, str], name: str, *, default: bool = False) -> bool:
    """A boolean in any of the forms clients use."""
    value = fields.get(name)
    return default if value is None else value in TRUE


def json_body(command: Command) -> dict[str, Any]:
    """The request's body as a JSON object, standard or as old Java clients write it; Refused when it is none."""
    try:
        body = fastjson.loads(command.body)
    except RemoteViolation as error:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise Refused(ResponseCode.INVALID_PARAMETER, "the body is not a JSON object")
    return body
