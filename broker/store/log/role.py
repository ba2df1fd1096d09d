"""What a store is opened as: the one who appends, or a replica that takes over bytes.

    Role()              a node by itself: every start raises the epoch by one
    Role(epoch=e)       the master of a group in epoch e, which the group's controller has given out
    Role(replica=True)  a replica of a group

Invariant: in a group nothing that was not said to be confirmed is shown, not even after a restart. Thread rule: plain
values.
"""

from __future__ import annotations

from dataclasses import dataclass

from remoting.protocol.errors import LocalMisuse

WRITER, REPLICA = "writer", "replica"
UNLIMITED = 2**63 - 1
"""A confirm limit that limits nothing."""


@dataclass(frozen=True, slots=True)
class Role:
    """A role; `epoch` is given to the master of a group only."""

    replica: bool = False
    epoch: int | None = None

    @property
    def grouped(self) -> bool:
        """Whether others have a say in what is confirmed."""
        return self.replica or self.epoch is not None


def role_of(name: str, epoch: int | None) -> Role:
    """Return the role of that name. Raises LocalMisuse."""
    if name == WRITER:
        return Role(epoch=epoch)
    if name != REPLICA or epoch is not None:
        raise LocalMisuse(f'role "{name}" with epoch {epoch}: "{WRITER}", or "{REPLICA}" without an epoch')
    return Role(replica=True)
