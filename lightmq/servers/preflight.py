"""What would stop a server from starting, found before anything is started: a port in use, an unusable data directory.

Ports: the check opens and closes a socket and leaves nothing behind; a later bind may still lose a
race, and that error reads the same.

Directories: one that :func:`prepare` accepts exists and a file was written into it and removed again.
"""

from __future__ import annotations

import errno
import socket
import tempfile
from pathlib import Path

from remoting.protocol.errors import LocalMisuse
from runtime.files import make_directory


class PortTaken(LocalMisuse):
    """A port cannot be listened on; names the port, the option that sets it and what to do."""


def explain(host: str, port: int, option: str, error: OSError) -> PortTaken:
    """The error of a listening socket in words."""
    if error.errno == errno.EADDRINUSE:
        return PortTaken(
            f"port {port} is already in use; stop what listens there or choose another with {option} "
            f"({option} 0 takes any free one)"
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return PortTaken(f"port {port} may not be opened by this user; choose one above 1023 with {option}")
    return PortTaken(f"cannot listen on {host}:{port} ({error.strerror or error}); choose another with {option}")


def check_free(host: str, port: int, option: str) -> None:
    """Raise PortTaken when ``host:port`` cannot be listened on; port 0 is always fine."""
    if port == 0:
        return
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as error:
        raise explain(host, port, option, error) from error


MODE = 0o700


class DirectoryUnusable(LocalMisuse):
    """A data directory cannot be made or written; names it, the reason and the option that chooses another."""


def prepare(directory: Path, option: str) -> None:
    """Make ``directory`` if it is not there and see that it can be written. Raises DirectoryUnusable."""
    try:
        make_directory(directory, mode=MODE)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise DirectoryUnusable(
            f"data directory {directory} cannot be used ({error.strerror or error}); "
            f"fix that or choose another with {option}"
        ) from error
