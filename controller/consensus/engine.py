"""What the controller needs of consensus, whichever engine does it, and the errors it may end in.

Invariant of every engine: what `propose` returned is applied on this controller, durable on a majority and never lost
again; commands are applied in one order everywhere; `barrier` returns only when everything that was committed anywhere
before the call is applied here. Loop rule: made, called and answering on one event loop, whatever threads work behind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from remoting.protocol.errors import LightMQError

COMMAND_BYTES_MAX = 1_048_576
"""Largest command; a larger one is our own caller's mistake."""


class NotLeading(LightMQError):
    """Another controller leads, or none does now; nothing was applied. `leader` is its node id if it is known."""

    def __init__(self, leader: str | None) -> None:
        super().__init__(f"this controller does not lead; the leader is {leader or 'not known'}")
        self.leader = leader


class OutcomeUnknown(LightMQError):
    """The command may have been applied or may be later; asking again with the same request id tells."""


class ConsensusFailed(LightMQError):
    """The engine cannot go on, because it cannot write its files; the process should end."""


class Machine(Protocol):
    """The replicated state; called in the order of the log, always by the same thread at a time."""

    def apply(self, data: bytes) -> object:
        """Carry out a command. Never raises."""
        ...

    def encode(self) -> bytes:
        """Return everything that `restore` needs, as bytes."""
        ...

    def restore(self, data: bytes) -> None:
        """Take over a whole state. Raises on bytes that are none."""
        ...


class Engine(Protocol):
    """One controller's part in consensus."""

    node_id: str

    @property
    def is_leader(self) -> bool:
        """Whether this controller may answer; proven only by `propose` and `barrier`."""
        ...

    @property
    def leader(self) -> str | None:
        """Node id of who leads as far as this controller knows."""
        ...

    @property
    def ready(self) -> bool:
        """Whether it knows who leads, and has had everything that was committed."""
        ...

    async def start(self) -> None:
        """Restore what is on disk and take part. Raises LocalMisuse, OSError."""
        ...

    async def stop(self) -> None:
        """Leave; what was answered stays durable."""
        ...

    async def propose(self, data: bytes) -> object:
        """What the machine answered to this command. Raises NotLeading, OutcomeUnknown, ConsensusFailed."""
        ...

    async def barrier(self) -> None:
        """Return when the machine here has everything committed before the call. Raises as `propose`."""
        ...

    def on_leadership(self, callback: Callable[[bool], None]) -> None:
        """Call `callback(leading)` at every change, on the loop."""
        ...

    async def until_failed(self) -> Exception:
        """Wait until it cannot go on; why."""
        ...

    def status(self) -> Mapping[str, object]:
        """Numbers for metrics and people: term, log entries, commits."""
        ...
