"""Request fields as values, with refusals that name the field. Pure."""

from __future__ import annotations

from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command

NUMBER_MAX = 2**63 - 1


def text(command: Command, name: str) -> str:
    """A field that must be there and say something."""
    value = command.fields.get(name)
    if not value:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"request {command.code} needs the field {name!r}")
    return value


def number(command: Command, name: str, default: int | None = None) -> int:
    """A whole number; required when there is no default."""
    value = command.fields.get(name)
    if not value:
        if default is not None:
            return default
        raise Refused(ResponseCode.INVALID_PARAMETER, f"request {command.code} needs the field {name!r}")
    # Longer texts are no number anybody means, and int() of them is slow.
    digits = value.removeprefix("-")
    if len(digits) > len(str(NUMBER_MAX)) or not (digits.isascii() and digits.isdigit()):
        raise Refused(ResponseCode.INVALID_PARAMETER, f"field {name!r} is no number: {value[:64]!r}")
    return int(value)


def truth(command: Command, name: str) -> bool:
    """A switch as Java ("true") or C++ ("1") writes it; absent means off."""
    return command.fields.get(name, "").lower() in ("true", "1")
