"""Who this broker is in its group, and the newest master epoch it knows of: one small file, replaced as a whole.

    GROUP   {"crc": n, "state": {cluster, group, broker_id, check_code, is_applied, epoch, clean, machine_boot, flush}}

The id is written before it is applied for (`is_applied` false), so that a crash in between applies for the same one
again with the same check code. `clean` says that the process before stopped in order, with everything on the disk;
`machine_boot` and `flush` say in which start of the machine, and how durably, the last process wrote that registered:
what a killed process had written is still there, unless the machine went too.
Invariant: what `save` was given is on the disk when it returns; a file that is not whole is refused, never guessed at:
a second broker under one id would be worse than one that does not start. Two starts of the machine never have the same
text. Blocks.
"""

from __future__ import annotations

import secrets
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from remoting.protocol.errors import LocalMisuse
from runtime.files import atomic_replace, make_directory

if TYPE_CHECKING:
    from broker.config import BrokerConfig

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def machine_boot(source: Path = BOOT_ID) -> str:
    """The kernel's id of this start; empty where it tells none, so that nothing is taken for granted."""
    try:
        return source.read_text().strip()
    except OSError:
        return ""


FILE_NAME = "GROUP"


class SavedIdentity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What must survive a restart."""

    cluster: str
    group: str
    broker_id: int | None = None
    check_code: str = ""
    is_applied: bool = False
    epoch: int = 0
    clean: bool = False
    machine_boot: str = ""
    flush: str = ""


class _Stored(msgspec.Struct):
    crc: int
    state: msgspec.Raw


class IdentityFile:
    """The file in a data directory."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE_NAME

    def load(self, cluster: str, group: str) -> SavedIdentity:
        """What is there, or a new identity. Raises LocalMisuse for a damaged file and for another group's."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return SavedIdentity(cluster, group, check_code=secrets.token_hex(16))
        try:
            stored = msgspec.json.decode(data, type=_Stored)
            if zlib.crc32(stored.state) != stored.crc:
                raise LocalMisuse(f"{self.path} is damaged: its checksum is wrong{_REMEDY}")
            identity = msgspec.json.decode(stored.state, type=SavedIdentity)
        except msgspec.MsgspecError as error:
            raise LocalMisuse(f"{self.path} is damaged: {error}{_REMEDY}") from error
        if (identity.cluster, identity.group) != (cluster, group):
            raise LocalMisuse(
                f"this data belongs to broker {identity.broker_id} of {identity.cluster}/{identity.group}, "
                f"not of {cluster}/{group}: correct cluster_name and broker_name, or choose another data directory"
            )
        return identity

    def save(self, identity: SavedIdentity) -> None:
        """Replace the file. Raises OSError."""
        state = msgspec.json.encode(identity)
        make_directory(self.path.parent, mode=0o700)
        atomic_replace(self.path, msgspec.json.encode(_Stored(zlib.crc32(state), msgspec.Raw(state))))


_REMEDY = "; restore it from a backup, or remove the broker from its group and let it join with an empty directory"


class OwnIdentity:
    """This broker's identity, saved as it changes, and what the process before has left behind."""

    def __init__(self, config: BrokerConfig) -> None:
        """Read the file. Raises LocalMisuse as `IdentityFile.load`."""
        self._file = IdentityFile(config.data_directory)
        self.identity: SavedIdentity = self._file.load(config.cluster_name, config.broker_name)
        self._machine_boot = machine_boot()
        self._flush = config.store.flush
        same_machine = self._machine_boot != "" and self._machine_boot == self.identity.machine_boot
        self.was_clean = self.identity.clean or same_machine
        """Whether all that the process before had written is there: it stopped in order, or the machine ran on."""
        self.was_flushed = (self.identity.flush or self._flush) == "sync"
        """Whether it flushed what it acknowledged."""
        self.boot_id = secrets.token_hex(8)

    def save(self, **changes: object) -> None:
        """Change the identity; it is on the disk when this returns. Raises OSError."""
        before, self.identity = self.identity, msgspec.structs.replace(self.identity, **changes)
        if self.identity != before:
            self._file.save(self.identity)

    def save_registered(self) -> None:
        """Note in which start of the machine, and how durably, the process writes that is registered now."""
        self.save(machine_boot=self._machine_boot, flush=self._flush)

    def lost_something(self) -> None:
        """The log was found damaged: to the controllers this is a new start that lost something."""
        self.was_clean = self.was_flushed = False
        self.boot_id = secrets.token_hex(8)
