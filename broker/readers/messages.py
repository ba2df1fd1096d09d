"""Messages between a broker and its reader processes: one JSON object per line over two pipes.

    broker -> reader   ReaderSettings, once, then, with an access list, a UserTable at the start and after each change;
                       the end of this pipe is the end of the reader
    reader -> broker   ReaderReport: once when it listens, then whenever its counts moved (at most once a second)

Invariant: counts only rise during the life of one process. Thread rule: plain values.
"""

from __future__ import annotations

import msgspec

from remoting.access.users import UserTable


class ReaderSettings(msgspec.Struct, kw_only=True):
    """All settings of a reader process; it reads no configuration file, flag or environment variable."""

    directory: str
    host: str
    port: int
    access_keys: tuple[str, ...] = ()
    open_to_all: bool = False
    bound_signatures_only: bool = False
    access_list: str | None = None
    partly_readable_filters: bool = True
    tls_mode: str = "disabled"
    tls_certificate: str | None = None
    tls_key: str | None = None
    tls_client_ca: str | None = None
    tls_client_required: bool = False
    pull_bytes_max: int
    frame_size_bytes_max: int
    output_bytes_max: int
    connections_max: int
    log_level: str = "info"
    log_json: bool = False


class ReaderReport(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What one process has done since it started."""

    requests: int = 0
    records: int = 0
    bytes: int = 0
    viewed: int = 0
    """Records shown to people, not among those before."""
    retries: int = 0
    """Reads of the index that were repeated because the broker changed it meanwhile."""
    refused: dict[str, int] = {}
    """Reason -> requests that were refused and go to the broker instead."""
    withheld: dict[str, int] = {}
    """Reason -> records that passed a filter and that the key may not read."""


def to_line(message: ReaderSettings | ReaderReport | UserTable) -> bytes:
    """The message as one line of JSON."""
    return msgspec.json.encode(message) + b"\n"


def settings_of(line: bytes) -> ReaderSettings:
    """The settings in a line. Raises msgspec.MsgspecError."""
    return msgspec.json.decode(line, type=ReaderSettings)


def report_of(line: bytes) -> ReaderReport:
    """The report in a line. Raises msgspec.MsgspecError."""
    return msgspec.json.decode(line, type=ReaderReport)


def users_of(line: bytes) -> UserTable:
    """The users and rules made by requests in a line. Raises msgspec.MsgspecError."""
    return msgspec.json.decode(line, type=UserTable)
