"""The password file: who may connect, one user per line.

    user:$argon2id$v=19$m=65536,t=3,p=4$...             made by `lightmq passwd`; lines that begin with # are comments
    user:SCRAM-SHA-256$16384:salt$storedkey:serverkey   made by `lightmq passwd --scram`; serves passwords as well

Invariants: a line that is not exactly that lets nobody in and is reported with its number (never with its text, which
may hold a password); a user named twice is denied until the file says one thing; a file that others may read or write
is not used.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

import argon2

from mqtt_proxy.access.methods import scram
from remoting.protocol.errors import LightMQError

FILE_SIZE_BYTES_MAX = 16 * 1_048_576
"""Largest file read, some 100,000 users; a larger one is refused as a mistake."""


class PasswordFileError(LightMQError):
    """The file cannot be used at all: missing, unreadable, too large, or open to other users of the machine."""


@dataclass(slots=True)
class PasswordTable:
    """What one reading of the file gave."""

    hashes: dict[str, str] = field(default_factory=dict)
    """User name -> argon2id hash or SCRAM credential."""
    problems: list[str] = field(default_factory=list)
    """Lines that let nobody in, in words for the operator."""


def load(path: Path) -> PasswordTable:
    """Read the file. PasswordFileError when it may not be used; bad lines are in `problems`."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe must not block the start
    except OSError as error:
        raise PasswordFileError(f"password file {path}: {error.strerror}") from error
    try:
        _check(path, os.fstat(descriptor))
        with os.fdopen(descriptor, "rb", closefd=False) as opened:
            return parse(opened.read(FILE_SIZE_BYTES_MAX))
    finally:
        os.close(descriptor)


def _check(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise PasswordFileError(f"password file {path} is not a regular file")
    if found.st_mode & (stat.S_IROTH | stat.S_IWOTH):
        mode = stat.filemode(found.st_mode)
        raise PasswordFileError(f"password file {path} is open to every user ({mode}); run: chmod 600 {path}")
    if found.st_size > FILE_SIZE_BYTES_MAX:
        raise PasswordFileError(f"password file {path} has {found.st_size} bytes, at most {FILE_SIZE_BYTES_MAX}")


def parse(data: bytes) -> PasswordTable:
    """Users and problems of the file's bytes."""
    result = PasswordTable()
    seen: dict[str, int] = {}
    lines = data.split(b"\n")
    if lines[-1] == b"":
        lines.pop()  # the end of the last line, not a blank one
    for number, raw in enumerate(lines, start=1):
        if raw.startswith(b"#"):
            continue
        problem, user, stored = _parse_line(raw)
        if problem:
            result.problems.append(f"line {number}: {problem}")
        elif user in seen:
            result.hashes.pop(user, None)
            result.problems.append(f"line {number}: the same user as line {seen[user]}; denied until only one is left")
        else:
            seen[user] = number
            result.hashes[user] = stored
    return result


def _parse_line(raw: bytes) -> tuple[str, str, str]:
    """(problem, user, hash); the problem is empty when the line is good."""
    try:
        line = raw.rstrip(b"\r").decode()
    except UnicodeDecodeError:
        return "not UTF-8", "", ""
    if not line.strip():
        return "blank", "", ""
    user, separator, behind = line.rpartition(f":{scram.PREFIX}")
    if separator and user:
        return _parse_scram(user, scram.PREFIX + behind)
    user, separator, stored = line.rpartition(":")
    if not separator or not user:
        return "not of the form user:hash", "", ""
    try:
        parameters = argon2.extract_parameters(stored)
    except argon2.exceptions.InvalidHashError:
        return "not an argon2id hash behind the colon", "", ""
    if parameters.type is not argon2.Type.ID:
        return "an argon2 hash of another kind than argon2id", "", ""
    return "", user, stored


def _parse_scram(user: str, stored: str) -> tuple[str, str, str]:
    try:
        scram.parse_stored(stored)
    except scram.ScramError as error:
        return str(error), "", ""
    return "", user, stored
