"""How a client finds and follows the master of a broker group: what to dial, when to ask, when to give up.

    begin ──▶ DialMaster(known address) ──unreachable──▶ AskControllers ──▶ DialMaster(address they name)
                                                          │ none ──▶ DialMaster(named meanwhile), or None: failed
    named, refused, pushed  change the known address, at any time

Sans-IO: a shell carries the steps out with its own sockets, loop or threads, and reports their results: `reached`,
`failed`, `found`. The broker named last under the highest epoch is dialled first. If it denies being the master,
dialling it alternates with asking the controllers, since it may be about to become master. Without a group name the
first group with a master is used from then on: sessions and offsets belong to one group. TLS, keys and time limits
belong to the shell and are the same for each address.
Invariant: a name with an older epoch than the known one changes nothing; an attempt has at most three steps. Thread
rule: plain values, one owner.
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
    """The known master of one broker group, and the next step towards it."""

    def __init__(self, broker_name: str = "", address: str = "", *, asked: str = "the controllers") -> None:
        """`address`: the master, if already known; `asked`: name of the controllers in error texts."""
        self.broker_name = broker_name
        """The group; empty until a first master has been found."""
        self.address = address
        """The master last named or found; empty when unknown."""
        self.epoch = 0
        self.failure: LightMQError | None = None
        """Why the last attempt failed."""
        self._asked = asked
        self._denials = 0
        """How often the presumed master denied being it."""
        self._next: DialMaster | AskControllers | None = None
        self._may_ask = False
        """Whether this attempt may still ask the controllers."""
        self._found = ""
        """The address that the controllers named in this attempt."""
        self._lost = ("", 0)
        """The master that could not be reached in this attempt, and its epoch."""

    # -- what others report --------------------------------------------------------------------------------------------

    def named(self, address: str, epoch: int) -> bool:
        """Note the master and epoch named by a server (empty: there is none); return whether it has changed."""
        if epoch < self.epoch:
            return False
        self.epoch = epoch
        if address == self.address:
            return False
        self._known(address)
        return bool(address)

    def refused(self, answer: NotMaster, by: str) -> bool:
        """Note that a broker denied being the master; return whether it named another one."""
        if answer.address and answer.address != by:
            return self.named(answer.address, answer.epoch)
        self.doubt(by)
        return False

    def doubt(self, by: str) -> None:
        """Note that the broker at `by` does not act as master: asking the controllers alternates with dialling it."""
        if self.address == by:
            self._denials += 1

    def pushed(self, routes: PushedRoutes) -> bool:
        """Note groups pushed by a controller; return whether dialling now may succeed."""
        group = routes.groups.get(self.broker_name)
        if group is not None:
            named = group.brokers.get(MASTER_ID, ""), group.epoch
            # A controller that cannot elect goes on naming a master that is gone; another broker stands in for it.
            return (not self.address or named != self._lost) and self.named(*named)
        is_lost = not self.broker_name and not self.address
        return is_lost and any(MASTER_ID in one.brokers for one in routes.groups.values())

    # -- an attempt ---------------------------------------------------------------------------------------------------

    def begin(self, *, is_pushed: bool = False) -> bool:
        """Begin an attempt to connect; return whether controllers that push should be asked for routes meanwhile."""
        asks = self._denials % ASK_EVERY != 0
        self.failure = None
        self._may_ask, self._found, self._lost = True, "", ("", 0)
        self._next = DialMaster(self.address) if self.address and (is_pushed or not asks) else AskControllers()
        return asks and is_pushed

    def next(self) -> DialMaster | AskControllers | None:
        """Return the step to carry out and report; None when the attempt has failed or is over."""
        return self._next

    def reached(self, address: str) -> None:
        """Note that the connection to `address` is made."""
        if self._found and address != self.address:
            self._known(address)
        self._next = None

    def found(self, cluster: ClusterInfo) -> None:
        """Process the controllers' answer."""
        try:
            address = self.choose(cluster)
        except Refused as refused:
            self.failed(refused)
        else:
            self._may_ask, self._found = False, address
            self._next = DialMaster(address)

    def failed(self, error: LightMQError) -> None:
        """Note that the step failed."""
        step, self._next = self._next, None
        self.failure = error
        if isinstance(step, DialMaster) and self._may_ask and isinstance(error, ConnectionLost):
            if self.address == step.address:
                self.address, self._lost = "", (step.address, self.epoch)
            self._next = AskControllers()
        elif isinstance(step, AskControllers) and self.address:
            # A master was named meanwhile, or the one that denied it may have become master by now.
            self._denials = 0
            self._next = DialMaster(self.address)
        self._may_ask = self._may_ask and not isinstance(step, AskControllers)

    def choose(self, cluster: ClusterInfo) -> str:
        """Return the group's master; without a name, that of the only group there is, kept from then on.

        Raises:
            Refused: the group has no master, or there are several groups and none was named: whichever has a master
                first would be the one that keeps what is written, until the next start chooses another.
        """
        table = cluster.broker_addr_table
        if not self.broker_name and len(table) > 1:
            remark = f"there are the broker groups {', '.join(sorted(table))}: name the one that is meant (broker_name)"
            raise Refused(ResponseCode.INVALID_PARAMETER, remark)
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
    """Return 1, for pauses of full length without a random spread."""
    return 1.0


class Backoff:
    """Pauses between attempts in ms, doubled up to a maximum; and when to give up."""

    def __init__(
        self, first_ms: float, ms_max: float, *, spread: Callable[[], float] = full, patience_ms: float = float("inf")
    ) -> None:
        """`spread` returns a factor 0..1 for each pause, so that many clients do not dial in step; give up after
        `patience_ms` of failures alone."""
        self._first_ms = first_ms
        self._ms_max = ms_max
        self._spread = spread
        self._patience_ms = patience_ms
        self._next_ms = first_ms
        self._failing_since_ms: float | None = None

    def failed(self, now_ms: float) -> float | None:
        """Return the pause after a failed attempt; None: give up."""
        if self._failing_since_ms is None:
            self._failing_since_ms = now_ms
        if now_ms - self._failing_since_ms >= self._patience_ms:
            return None
        pause_ms, self._next_ms = self._next_ms, min(2 * self._next_ms, self._ms_max)
        return pause_ms * self._spread()

    def reached(self) -> None:
        """Note that a connection is made."""
        self._next_ms, self._failing_since_ms = self._first_ms, None

    def lost(self) -> float:
        """Return the pause after a lost connection: a server that closes each one is not dialled in a tight loop."""
        return self._first_ms * self._spread()
