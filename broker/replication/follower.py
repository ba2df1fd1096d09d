"""A replica's side of one connection to its master: events in, actions out.

    WAITING --Greeting--> GREETED --Welcome--> CUTTING --cut--> STREAMING        any --Refusal or violation--> OVER

| state     | event            | actions                                                                      |
|-----------|------------------|------------------------------------------------------------------------------|
| WAITING   | Greeting         | Send hello                                                                   |
| GREETED   | Welcome          | Cut to the truncation point, or Reset to the master's begin                  |
| CUTTING   | cut              | Send ready, Send ack of the flushed end                                      |
| STREAMING | Transfer         | Write, Confirm; a heartbeat: Send ack of the flushed end                     |
| STREAMING | flushed          | Send ack                                                                     |

The flushed end is what the store reports as kept: with `flush = "async"` what is written.
Invariant: an ack names that end as the store reported it, nothing computed. Bytes are taken only at the
log's end, from a master whose epoch is at least the newest this broker knows of, and of epochs that never fall. A
cut below the confirm position is done, because the master's log is the truth, but it is reported: in the safe mode it
never happens. Pure: the shell does the actions in their order and reports; one instance per connection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from broker.replication.epochs import Extent, checked, truncation_point
from broker.replication.frames import (
    Ack,
    Frame,
    Greeting,
    Hello,
    Ready,
    Refusal,
    Transfer,
    Welcome,
    encode_ack,
    encode_hello,
    encode_ready,
    prove,
    proved,
)
from remoting.protocol.errors import RemoteViolation


class LinkPhase(Enum):
    """Where a connection stands."""

    WAITING = "waiting"
    GREETED = "greeted"
    CUTTING = "cutting"
    STREAMING = "streaming"
    OVER = "over"


@dataclass(frozen=True, slots=True)
class Send:
    """Bytes for the master."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Cut:
    """Cut the log at `position`, durably, then call `cut`; `below_confirm` bytes it loses were confirmed."""

    position: int
    below_confirm: int


@dataclass(frozen=True, slots=True)
class Reset:
    """Drop the whole log, durably, begin at `position`, then call `cut`; `below_confirm` as with a cut."""

    position: int
    below_confirm: int


@dataclass(frozen=True, slots=True)
class Write:
    """Append the bytes at the log's end; their epoch entry is durable before them."""

    transfer: Transfer


@dataclass(frozen=True, slots=True)
class AdvanceConfirm:
    """Show what is flushed below `position`."""

    position: int


@dataclass(frozen=True, slots=True)
class Over:
    """Close the connection; `reason` is that of a Refusal, 0 for anything else. `epoch` is the master's."""

    reason: int
    epoch: int
    remark: str


Action = Send | Cut | Reset | Write | AdvanceConfirm | Over


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaIdentity:
    """Who this replica is, and what it shows for it."""

    broker: int
    cluster: str
    group: str
    is_learner: bool = False
    access_key: str = ""
    secret: str | None = None


class Follower:
    """One connection to a master."""

    def __init__(
        self, identity: ReplicaIdentity, log: Extent, *, flushed: int, confirm: int, epoch: int, nonce: bytes
    ) -> None:
        self.stage = LinkPhase.WAITING
        self.epoch = max(epoch, log.epochs.last)
        """The newest epoch known; an older master is refused."""
        self.master_end = 0
        self._identity = identity
        self._log = log
        self._nonce = nonce
        self._end = log.end
        self._flushed = flushed
        self._confirm = confirm
        self._record_epoch = log.epochs.last
        self._acked = -1

    # -- events -------------------------------------------------------------------------------------------------------

    def receive(self, frame: Frame) -> Sequence[Action]:
        """A frame of the master."""
        if self.stage is LinkPhase.OVER:
            return ()
        if isinstance(frame, Refusal):
            return self._over(frame.reason, frame.remark, frame.epoch)
        step = _STEPS.get((self.stage, type(frame)))
        if step is None:
            return self._over(0, f"a {type(frame).__name__} while {self.stage.value}")
        try:
            return step(self, frame)
        except RemoteViolation as violation:
            return self._over(0, violation.reason)

    def cut(self, end: int, flushed: int) -> Sequence[Action]:
        """The log was cut or reset, durably: it ends at `end`, and the store reports how much of it is flushed."""
        assert self.stage is LinkPhase.CUTTING, self.stage
        assert flushed <= end, (flushed, end)
        self._end, self._flushed = end, flushed
        self.stage = LinkPhase.STREAMING
        return [Send(encode_ready(Ready(self.epoch, end))), *self._ack()]

    def flushed(self, end: int) -> Sequence[Action]:
        """Everything below `end` is on the disk."""
        if self.stage is not LinkPhase.STREAMING or end <= self._flushed:
            return ()
        assert end <= self._end, (end, self._end)
        self._flushed = end
        return self._ack()

    # -- steps --------------------------------------------------------------------------------------------------------

    def _greeted(self, frame: Greeting) -> Sequence[Action]:
        me, log = self._identity, self._log
        hello = Hello(
            me.broker, self.epoch, log.begin, log.end, self._nonce, me.cluster, me.group, me.access_key, me.is_learner
        )
        self.stage = LinkPhase.GREETED
        return [Send(encode_hello(hello, lambda content: prove(me.secret, frame.nonce, content)))]

    def _welcomed(self, frame: Welcome) -> Sequence[Action]:
        if not proved(self._identity.secret, self._nonce, frame.signed, frame.proof):
            raise RemoteViolation("the master does not know the group's secret")
        if frame.epoch < self.epoch:
            raise RemoteViolation(f"a master of epoch {frame.epoch}, and there is an epoch {self.epoch}")
        log = self._log
        theirs = checked(frame.epochs, frame.end)
        position = truncation_point(log, Extent(frame.begin, frame.end, theirs))
        self.epoch = frame.epoch
        self.master_end = frame.end
        self.stage = LinkPhase.CUTTING
        if position is None:
            self._record_epoch = 0
            return [Reset(frame.begin, max(0, self._confirm - max(log.begin, frame.begin)))]
        kept = log.epochs.at(position - 1)
        self._record_epoch = kept[0] if kept is not None else 0
        return [Cut(position, max(0, self._confirm - position))]

    def _transferred(self, frame: Transfer) -> Sequence[Action]:
        if not len(frame.data):
            return [AdvanceConfirm(frame.confirm), Send(encode_ack(Ack(self.epoch, self._flushed)))]
        if frame.position != self._end:
            raise RemoteViolation(f"bytes for {frame.position}, the log ends at {self._end}")
        if not self._record_epoch <= frame.epoch <= self.epoch:
            raise RemoteViolation(f"bytes of epoch {frame.epoch} after {self._record_epoch}, master at {self.epoch}")
        self._record_epoch = frame.epoch
        self._end += len(frame.data)
        self.master_end = max(self.master_end, self._end)
        return [Write(frame), AdvanceConfirm(frame.confirm)]

    def _ack(self) -> Sequence[Action]:
        if self._flushed <= self._acked:
            return ()
        self._acked = self._flushed
        return [Send(encode_ack(Ack(self.epoch, self._flushed)))]

    def _over(self, reason: int, remark: str, epoch: int | None = None) -> Sequence[Action]:
        self.stage = LinkPhase.OVER
        return [Over(reason, self.epoch if epoch is None else epoch, remark)]


_STEPS: dict[tuple[LinkPhase, type], Callable[..., Sequence[Action]]] = {
    (LinkPhase.WAITING, Greeting): Follower._greeted,  # noqa: SLF001 - the table of the class above
    (LinkPhase.GREETED, Welcome): Follower._welcomed,  # noqa: SLF001 - as above
    (LinkPhase.STREAMING, Transfer): Follower._transferred,  # noqa: SLF001 - as above
}
