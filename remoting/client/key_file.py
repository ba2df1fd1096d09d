"""The key a process signs its requests with: one line `key:secret` in a file that nobody else may read.

Invariant: no text of an error holds any of the file's content. Blocks; read it at the start.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from remoting.client.connection import connect, dial
from remoting.client.tls import ClientTls
from remoting.protocol.errors import LocalMisuse
from remoting.transport.contracts import Connection, Dial
from remoting.transport.failures import split_address
from remoting.transport.signature import Signer

KEY_FILE_BYTES_MAX = 4_096
"""Largest key file read; a larger one is refused as a mistake."""


def read_signer(path: Path) -> Signer:
    """The signer of a key file. Raises LocalMisuse when it may not be used."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe must not block the start
    except OSError as error:
        raise LocalMisuse(f"key file {path}: {error.strerror}") from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise LocalMisuse(f"key file {path} is not a regular file")
        if found.st_mode & (stat.S_IROTH | stat.S_IWOTH):
            raise LocalMisuse(f"key file {path} is open to every user; run: chmod 600 {path}")
        data = os.read(descriptor, KEY_FILE_BYTES_MAX + 1)
    finally:
        os.close(descriptor)
    try:
        key, separator, secret = data.decode().strip().partition(":")
    except UnicodeDecodeError:
        key = separator = secret = ""
    if len(data) > KEY_FILE_BYTES_MAX or not (separator and key and secret and (key + secret).isprintable()):
        raise LocalMisuse(f"key file {path} is not one line of the form key:secret")
    return Signer(key, secret)


def signing_dial(path: Path | None, tls: ClientTls | None = None) -> Dial:
    """`dial` for connections whose requests are signed with the key of a file; without one they are not."""
    if path is None and tls is None:
        return dial
    signer = read_signer(path) if path is not None else None
    if tls is not None:
        tls.context()  # what is wrong with the files is told at the start

    async def dial_signed(address: str) -> Connection:
        host, port = split_address(address)
        return await connect(host, port, signer=signer, tls=tls)

    return dial_signed
