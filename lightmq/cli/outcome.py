"""How a command ends: its errors as one line for people, and its exit status.

Invariant: an expected error never shows a traceback; an unexpected one always does.
"""

from __future__ import annotations

import base64
import errno
import sys
from collections.abc import Callable

from remoting.protocol.errors import LightMQError

DONE = 0
FAILED = 1
MISUSED = 2
INTERRUPTED = 130


class CommandFailed(LightMQError):  # says what happened, as its siblings do
    """A command failed; the text has the reason and the remedy."""


def guarded(command: Callable[[], object]) -> int:
    """Run a command and turn the way it ends into an exit status; SystemExit passes."""
    try:
        command()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()  # the reader of the output has closed it; a message would fail as well
        return FAILED
    except LightMQError as error:
        return fail(str(error))
    except OSError as error:
        return fail(explain_oserror(error))
    return DONE


def fail(text: str, status: int = FAILED) -> int:
    """Say why on standard error, as one line; the answer is ``status``."""
    sys.stderr.write(f"lightmq: {' '.join(text.split())}\n")
    return status


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
