"""Who the controllers are: `n1@host:port@raftport` texts as a table, and how they trust each other.

Invariant: node ids and addresses are unique, and this controller is one of them.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from remoting.protocol.errors import LocalMisuse
from runtime.files import fsync_dir, make_directory

MEMBERS_MAX = 7
"""Controllers of one installation; more make every decision slower and none safer."""
SHARED_FILE = "raft.secret"
SECRET_CHARACTERS_MIN = 16
SECRET_BYTES_MAX = 4_096
PORT_MAX = 65_535


@dataclass(frozen=True, slots=True)
class ControllerNode:
    """One controller: `address` is where brokers and clients ask, `raft_port` where controllers agree."""

    node_id: str
    host: str
    port: int
    raft_port: int

    @property
    def address(self) -> str:
        """`host:port` for brokers and clients."""
        return f"{self.host}:{self.port}"


def parse_members(texts: Sequence[str], node_id: str) -> dict[str, ControllerNode]:
    """The controllers by node id, this one among them. Raises LocalMisuse."""
    members = {member.node_id: member for member in map(parse_member, texts)}
    if len(members) != len(texts) or len({(m.host, m.raft_port) for m in members.values()}) != len(texts):
        raise LocalMisuse("controller.peers names a node id or an address twice")
    if node_id not in members:
        raise LocalMisuse(f"controller.node_id {node_id!r} is not among controller.peers ({', '.join(members)})")
    if len(members) > MEMBERS_MAX or len(members) == 2:
        raise LocalMisuse(
            f"controller.peers must name 1, 3, 5 or 7 controllers (4 or 6 while one is added), not {len(members)}"
        )
    return members


def is_local(members: dict[str, ControllerNode]) -> bool:
    """Whether all controllers are on this machine."""
    return all(_loopback(member.host) for member in members.values())


def read_secret(path: Path | None, members: dict[str, ControllerNode], data_directory: Path) -> bytes:
    """The secret controllers prove themselves with. Raises LocalMisuse.

    Between machines a file must be named. On one machine the file beside the data directories serves, and is made by
    the first controller that looks.
    """
    if path is None:
        if not is_local(members):
            raise LocalMisuse(
                "controllers on several machines need controller.raft_secret_file: the same file on each, readable by "
                f"its owner alone, with at least {SECRET_CHARACTERS_MIN} characters"
            )
        path = data_directory.absolute().parent / SHARED_FILE
        _make_secret(path)
    try:
        found = path.stat()
        data = path.read_bytes()[:SECRET_BYTES_MAX].strip()
    except OSError as error:
        raise LocalMisuse(f"raft secret file {path}: {error.strerror}") from error
    if found.st_mode & 0o007:  # a group may read it: Kubernetes passes secrets to processes without root in this way
        raise LocalMisuse(f"raft secret file {path} is open to every user; run: chmod 600 {path}")
    if len(data) < SECRET_CHARACTERS_MIN:
        raise LocalMisuse(f"raft secret file {path} has less than {SECRET_CHARACTERS_MIN} characters")
    return data


def _make_secret(path: Path) -> None:
    """Another controller may do the same at this moment: the first one wins, and no reader sees half a file."""
    if path.exists():
        return
    make_directory(path.parent)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.touch(mode=0o600)
    try:
        with temporary.open("w") as file:
            file.write(secrets.token_urlsafe(32))
            file.flush()
            os.fsync(file.fileno())  # a power cut must not leave the name of an empty file: no start would replace it
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        temporary.unlink()
    fsync_dir(path.parent)


def parse_member(text: str) -> ControllerNode:
    """One controller from `n1@host:port@raftport`. Raises LocalMisuse."""
    node_id, _, rest = text.partition("@")
    address, _, raft = rest.rpartition("@")
    host, _, port = address.rpartition(":")
    if not (node_id and node_id.isascii() and node_id.isalnum() and host and _is_port(port) and _is_port(raft)):
        raise LocalMisuse(f"controller.peers: {text!r} is not of the form n1@host:port@raftport")
    return ControllerNode(node_id, host.strip("[]") if host.startswith("[") else host, int(port), int(raft))


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and 0 < int(text) <= PORT_MAX


def _loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
