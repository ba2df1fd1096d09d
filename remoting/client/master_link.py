"""How a client finds the master of a broker group and follows it: what to dial next, when to ask, when to give up.

    begin ──▶ DialMaster(known address) ──unreachable──▶ AskControllers ──▶ DialMaster(address they name)
                                                          │ none ──▶ DialMaster(named meanwhile), or None: failed
    named, refused, pushed  change the known address, at any time

Sans-IO: a shell carries the steps out with its own sockets, loop or threads, and reports their results: `reached`,
`failed`, `found`. The broker named last under the highest epoch is dialled first. One that answers that it is not the
master is dialled in turn with asking the controllers: it may be about to become it. Without a name the first group that
has a master is taken and kept: sessions and offsets live in one group. TLS, keys and time limits belong to the shell
and are the same for each address.
Invariant: a name with an older epoch than the known one changes nothing; an attempt has three steps at
most. Thread rule: plain values, one owner.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from remoting.protocol.bodies.controller_body import MASTER_ID, ClusterInfo, PushedRoutes
from remoting.protocol.errors import LightMQError, Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.transport.failures import ConnectionLost, NotMaster

ASK_EVERY = 2
"""A broker that denies being the master is dialled again as often as the controllers are asked."""


@dataclass(frozen=True, slots=True)
class DialMaster:
    """Connect to this address."""

    address: str


@dataclass(frozen=True, slots=True)
class AskControllers:
    """Ask the controllers for the broker groups and their masters."""


class MasterLink:
    """The master of one broker group, as far as it is known, and the next step towards it."""

    def __init__(self, broker_name: str = "", address: str = "", *, asked: str = "the controllers") -> None:
        """`address` is the master as known from elsewhere; `asked` names the controllers in error texts."""
        self.broker_name = broker_name
        """The group; empty until the first master of any was found."""
        self.address = address
        """The master as last named or found; empty when it is unknown."""
        self.epoch = 0
        self.failure: LightMQError | None = None
        """Why the last attempt came to nothing."""
        self._asked = asked
        self._denials = 0
        """How often the broker taken for the master denied that."""
        self._next: DialMaster | AskControllers | None = None
        self._may_ask = False
        """Whether this attempt has not asked yet."""
        self._found = ""
        """Whom the controllers named in this attempt."""

    # -- what others report --------------------------------------------------------------------------------------------

    def named(self, address: str, epoch: int) -> bool:
        """A server names the master and its epoch (empty: there is none); return whether it is another one."""
        if epoch < self.epoch:
            return False
        self.epoch = epoch
        if address == self.address:
            return False
        self._known(address)
        return bool(address)

    def refused(self, answer: NotMaster, by: str) -> bool:
        """A broker answered that it is not the master; return whether it named another one."""
        if answer.address and answer.address != by:
            return self.named(answer.address, answer.epoch)
        self.doubt(by)
        return False

    def doubt(self, by: str) -> None:
        """The broker at `by` failed as a master does not: in turn with dialling it, the controllers are asked."""
        if self.address == by:
            self._denials += 1

    def pushed(self, routes: PushedRoutes) -> bool:
        """A controller pushes groups that changed; return whether it is worth dialling now."""
        group = routes.groups.get(self.broker_name)
        if group is not None:
            return self.named(group.brokers.get(MASTER_ID, ""), group.epoch)
        is_lost = not self.broker_name and not self.address
        return is_lost and any(MASTER_ID in one.brokers for one in routes.groups.values())

    # -- an attempt ---------------------------------------------------------------------------------------------------

    def begin(self, *, is_pushed: bool = False) -> bool:
        """Begin an attempt to connect; return whether controllers that push should be asked for routes meanwhile."""
        asks = self._denials % ASK_EVERY != 0
        self.failure = None
        self._may_ask, self._found = True, ""
        self._next = DialMaster(self.address) if self.address and (is_pushed or not asks) else AskControllers()
        return asks and is_pushed

    def next(self) -> DialMaster | AskControllers | None:
        """The step to carry out and report; None when the attempt has failed, or is over."""
        return self._next

    def reached(self, address: str) -> None:
        """There is a connection to it."""
        if self._found and address != self.address:
            self._known(address)
        self._next = None

    def found(self, cluster: ClusterInfo) -> None:
        """The controllers' answer."""
        try:
            address = self.choose(cluster)
        except Refused as refused:
            self.failed(refused)
        else:
            self._may_ask, self._found = False, address
            self._next = DialMaster(address)

    def failed(self, error: LightMQError) -> None:
        """The step could not be carried out."""
        step, self._next = self._next, None
        self.failure = error
        if isinstance(step, DialMaster) and self._may_ask and isinstance(error, ConnectionLost):
            if self.address == step.address:
                self.address = ""
            self._next = AskControllers()
        elif isinstance(step, AskControllers) and self.address:
            # One was named meanwhile, or it denied being the master: it may be by now.
            self._denials = 0
            self._next = DialMaster(self.address)
        self._may_ask = self._may_ask and not isinstance(step, AskControllers)

    def choose(self, cluster: ClusterInfo) -> str:
        """The master of our group, or of the first one that has one, which is ours from now on. Raises Refused."""
        table = cluster.broker_addr_table
        for name in (self.broker_name,) if self.broker_name else sorted(table):
            address = table[name].master() if name in table else None
            if address is not None:
                self.broker_name = name
                return address
        if self.broker_name:
            known = ", ".join(sorted(table)) or "none"
            remark = f"broker {self.broker_name!r} has no master (known: {known})"
        else:
            remark = f"no broker is registered at {self._asked}"
        raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, remark)

    def _known(self, address: str) -> None:
        self.address, self._denials = address, 0


def full() -> float:
    """No spread: every pause has its full length."""
    return 1.0


class Backoff:
    """Pauses between attempts in ms, each twice as long as the one before up to the longest; and when to give up."""

    def __init__(
        self,
        first_ms: float,
        ms_max: float,
        *,
        spread: Callable[[], float] = full,
        patience_ms: float = float("inf"),
    ) -> None:
        """`spread` gives a factor 0..1 for each pause, so that many clients do not dial in step; after `patience_ms` of
        nothing but failures it is time to give up."""
        self._first_ms = first_ms
        self._ms_max = ms_max
        self._spread = spread
        self._patience_ms = patience_ms
        self._next_ms = first_ms
        self._failing_since_ms: float | None = None

    def failed(self, now_ms: float) -> float | None:
        """An attempt failed: the pause before the next one; None: give up."""
        if self._failing_since_ms is None:
            self._failing_since_ms = now_ms
        if now_ms - self._failing_since_ms >= self._patience_ms:
            return None
        pause_ms, self._next_ms = self._next_ms, min(2 * self._next_ms, self._ms_max)
        return pause_ms * self._spread()

    def reached(self) -> None:
        """There is a connection."""
        self._next_ms, self._failing_since_ms = self._first_ms, None

    def lost(self) -> float:
        """A connection ended: the pause before the next; a server that closes at once is not dialled in a loop."""
        return self._first_ms * self._spread()
