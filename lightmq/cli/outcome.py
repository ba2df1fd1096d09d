"""What a command prints, and how it ends: its errors as one line for people, and its exit status.

Invariant: an expected error never shows a traceback; an unexpected one always does.
"""

from __future__ import annotations

import base64
import errno
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TextIO

from remoting.protocol.errors import LightMQError

DONE = 0
FAILED = 1
MISUSED = 2
INTERRUPTED = 130


class CommandFailed(LightMQError):  # says what happened, as its siblings do
    """A command failed; the text has the reason and the remedy."""


class CommandMisused(CommandFailed):
    """The arguments do not mean anything that can be done; nothing was asked of a server."""


def guarded(command: Callable[[], object]) -> int:
    """Run a command and turn the way it ends into an exit status; SystemExit and CommandMisused pass."""
    try:
        command()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()  # the reader of the output has closed it; a message would fail as well
        return FAILED
    except CommandMisused:
        raise
    except LightMQError as error:
        return fail(str(error))
    except OSError as error:
        return fail(explain_oserror(error))
    return DONE


def fail(text: str, status: int = FAILED) -> int:
    """Say why on standard error, as one line; the answer is ``status``."""
    name = "\x1b[31mlightmq:\x1b[0m" if is_coloured(sys.stderr) else "lightmq:"
    sys.stderr.write(f"{name} {' '.join(text.split())}\n")
    return status


def is_coloured(stream: TextIO) -> bool:
    """Whether a stream gets colours: NO_COLOR, then FORCE_COLOR decide, else a terminal that is not dumb does."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (stream.isatty() and os.environ.get("TERM") != "dumb")


def explain_oserror(error: OSError) -> str:
    """An error of the operating system with its subject and, where known, the remedy."""
    name = f"{error.filename}: " if error.filename else ""
    text = f"{name}{error.strerror or error}"
    hints = {
        errno.ENOSPC: "free some space or choose another directory with --data",
        errno.EACCES: "choose a place you may write to, or change its permissions",
        errno.EROFS: "the file system is read-only; choose another directory with --data",
        errno.EMFILE: "raise the limit of open files (ulimit -n)",
        errno.ECONNREFUSED: "nothing listens there; is `lightmq up` running?",
    }
    hint = hints.get(error.errno or 0)
    return f"{text}; {hint}" if hint else text


def payload_fields(payload: bytes | bytearray) -> dict[str, str]:
    """A payload as JSON can hold it."""
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(payload).decode()}


def printable(text: str) -> str:
    """Text from a client as a terminal may have it: nothing in it moves a cursor."""
    return "".join(one if one.isprintable() else f"\\u{ord(one):04x}" for one in text)


def columns(headings: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Aligned columns."""
    cells = [headings, *rows]
    widths = [max(len(line[column]) for line in cells) for column in range(len(headings))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    return "\n".join(lines) + "\n"


def print_json(rows: Iterable[Mapping[str, Any]]) -> None:
    """One JSON object on a line for each row."""
    sys.stdout.write("".join(json.dumps(row) + "\n" for row in rows))


def print_done(sentence: str, json_output: bool, **facts: object) -> None:  # as the option says
    """What a command did: a sentence for people, or the facts as a JSON object."""
    sys.stdout.write(f"{json.dumps(facts) if json_output else printable(sentence)}\n")


def print_rows(
    rows: Sequence[dict[str, Any]],
    headings: tuple[str, ...],
    cells: Callable[[dict[str, Any]], tuple[str, ...]],
    *,
    json_output: bool,
    empty: str,
) -> None:
    """Rows as JSON or as aligned columns; for people, `empty` says on standard error that there are none."""
    if json_output:
        print_json(rows)
    elif not rows:
        sys.stderr.write(f"{printable(empty)}\n")
    else:
        sys.stdout.write(columns(headings, [cells(row) for row in rows]))


def json_object(body: bytes, what: str) -> dict[str, Any]:
    """A broker's answer about something. Raises CommandFailed when it is not an object."""
    try:
        found = json.loads(body)
        if not isinstance(found, dict):
            raise TypeError(type(found).__name__)
    except (ValueError, TypeError) as error:
        raise unreadable(what, error) from error
    return found


def unreadable(what: str, why: Exception | str) -> CommandFailed:
    """The failure of a command that cannot read a broker's answer."""
    return CommandFailed(f"the broker's answer {what} cannot be read: {why if isinstance(why, str) else repr(why)}")
