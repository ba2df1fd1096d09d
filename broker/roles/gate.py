"""The one handler behind a broker's port: the requests of the present role, and NOT_MASTER for all others.

    master   the table of `broker.router`, appends only while enough replicas are in sync
    replica  NOT_MASTER with the master's address; codes of RocketMQ get 14, which its clients retry elsewhere, with the
             same fields
    fenced   the same without an address; so answers a master that stood still, until it knows that it still is one

Some codes are answered in every role (`always`): what controllers and operators ask. What waits to be confirmed when
the master's role ends may stay or go: it is answered with code 14, who is the master, and outcome=unknown
(`giving_up`). Invariant: no connection that was answered in one role is answered in another; `serve` and `refuse` close
all of them, and what was not answered by then fails at its sender as with any lost connection. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from broker.store.errors import GivenUp
from remoting.access.rights import LOCATE, RIGHTS, with_rights
from remoting.protocol.bodies.controller_body import MASTER_ADDRESS_FIELD, MASTER_EPOCH_FIELD
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.server.access import Access
from remoting.server.authorizer import Authorizer
from remoting.server.router import Router, Unsupported
from remoting.transport.contracts import Handler, Peer
from remoting.transport.failures import OUTCOME_FIELD, OUTCOME_UNKNOWN

PRIVATE_CODES_FROM = 9_000
"""Codes of our own parts, who know the answer NOT_MASTER."""
PRIVATE_CODES_BEFORE = 10_000

APPENDS = frozenset(
    {
        Code.APPEND_MANY, Code.STAGE, Code.COMMIT_BATCH, Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2,
        Code.SEND_BATCH_MESSAGE, Code.CONSUMER_SEND_MSG_BACK,
    }
)  # fmt: skip
"""What brings messages, and is refused while too few replicas are in sync."""

Admission = Callable[[], Refused | None]
"""Why messages are not taken now; None when they are."""


class RoleGate:
    """Answers a broker's peers in its present role."""

    def __init__(
        self,
        always: Mapping[int, Handler],
        access: Access,
        close_peers: Callable[[str], None],
        authorizer: Authorizer | None = None,
        broker_name: str = "",
    ) -> None:
        """`broker_name`: the group's, which `always` and NOT_MASTER are asked for."""
        self._authorizer = authorizer or Authorizer()
        self._broker_name = broker_name
        self._always = {
            code: self._asking(RIGHTS[code].action, handler) for code, handler in with_rights(always).items()
        }
        self._access = access
        self._close_peers = close_peers
        self._router: Router | None = None
        self.unsupported: Unsupported | None = None
        """Hears of requests that no handler of a master answers."""
        self._may_answer: Callable[[], bool] = _always
        self.master_address = ""
        self.master_epoch = 0
        self.refused = 0
        """Requests answered with NOT_MASTER."""

    def __call__(self, peer: Peer, command: Command) -> Command | None:
        """Answer one request; raises what the handler raises."""
        if self._router is not None and self._may_answer():
            return self._router(peer, command)
        challenge = self._access.admit(peer, command)
        if challenge is not None:
            return challenge
        handler = self._always.get(command.code)
        if handler is not None:
            return handler(peer, command)
        self._authorizer.authorize(peer, command, LOCATE, "")
        self.refused += 1
        return self._not_master(command)

    @property
    def serving(self) -> bool:
        """Whether requests are answered here."""
        return self._router is not None

    def serve(
        self,
        table: Mapping[int, Handler],
        epoch: int,
        admission: Admission | None = None,
        may_answer: Callable[[], bool] | None = None,
    ) -> None:
        """Answer requests by this table from now on, but while this broker does not know that it `may_answer`."""
        self._may_answer = may_answer or _always
        handlers = {**table, **self._always}
        if admission is not None:
            for code in APPENDS & set(handlers):
                handlers[code] = _admitted(handlers[code], admission)
        self.master_address, self.master_epoch = "", epoch
        self._router = Router(handlers, access=self._access, unsupported=self.unsupported)
        self._close_peers("this broker is the master now")

    def refuse(self, master_address: str, epoch: int) -> None:
        """Answer NOT_MASTER from now on; the address is empty when nobody knows who is."""
        was_serving, self._router = self._router is not None, None
        self.master_address, self.master_epoch = master_address, epoch
        if was_serving:
            self._close_peers("this broker is not the master any more")

    def doubt(self) -> None:
        """Nobody who waits is answered by what was true before: it may not be any more."""
        self._close_peers("this broker stood still and does not know yet whether it is the master")

    def _asking(self, action: str, handler: Handler) -> Handler:
        """The handler, for those who may ask this of our group."""

        def handle(peer: Peer, command: Command) -> Command | None:
            self._authorizer.authorize(peer, command, action, self._broker_name)
            return handler(peer, command)

        return handle

    def _not_master(self, command: Command) -> Command:
        private = PRIVATE_CODES_FROM <= command.code < PRIVATE_CODES_BEFORE
        return command.reply(
            ResponseCode.NOT_MASTER if private else ResponseCode.SERVICE_NOT_AVAILABLE,
            f"this broker is not the master of its group, {_where(self.master_address)}",
            _fields(self.master_address, self.master_epoch),
        )


def _always() -> bool:
    return True


def giving_up(master_address: str, epoch: int) -> GivenUp:
    """What those hear who wait for something that was written here to be confirmed; the address may be unknown."""
    return GivenUp(
        "this broker ceased to be the master of its group before the replicas had this: it may be kept or lost, "
        + _where(master_address),
        _fields(master_address, epoch) | {OUTCOME_FIELD: OUTCOME_UNKNOWN},
    )


def _where(master_address: str) -> str:
    return f"the master is {master_address}" if master_address else "no master is known now"


def _fields(master_address: str, epoch: int) -> dict[str, str]:
    return {MASTER_ADDRESS_FIELD: master_address, MASTER_EPOCH_FIELD: str(epoch or "")}


def _admitted(handler: Handler, admission: Admission) -> Handler:
    def handle(peer: Peer, command: Command) -> Command | None:
        refused = admission()
        if refused is not None:
            raise refused
        return handler(peer, command)

    return handle


def peers_closer(peers: Callable[[], Iterable[Peer]]) -> Callable[[str], None]:
    """What closes all connections of a port: queued answers go out first."""

    def close(reason: str) -> None:
        for peer in list(peers()):
            peer.close(reason)

    return close
