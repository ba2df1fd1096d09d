"""Users and rules at a replica: it has no log to write, so it remembers the controllers' table.

RocketMQ's tools send changes for a cluster to replicas too, after their masters; a replica proposes them to the
controllers as a master does. Its policy follows the table, so keys of deleted users end here as well.

Invariant: it follows only while this broker is no master, whose policy has the table of the log. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

from broker.access.agreement import Agreement
from broker.access.requests import UserRequests
from remoting.access.agreement import UserState, Version, with_states
from remoting.access.users import UserTable
from remoting.client.controllers import Controllers
from remoting.protocol.frames.commands import Command
from remoting.server.authorizer import Authorizer
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from runtime.metrics import Registry


class RememberedUsers:
    """The users as the controllers had them last."""

    def __init__(self, in_force: Callable[[UserTable], None]) -> None:
        """`in_force` gets the table after each change."""
        self._in_force = in_force
        self.version = Version()
        self.table = UserTable()
        self.position = 0
        """Nothing is to be waited for."""

    def write(self, states: Iterable[UserState], version: Version | None = None) -> int:
        """Put these users in place of those of the same names."""
        self.table = with_states(self.table, states)
        self.version = self.version if version is None else version
        self._in_force(self.table)
        return self.position


class ReplicaUsers:
    """The users of a broker that is not the master of its group."""

    def __init__(
        self,
        config: BrokerConfig,
        authorizer: Authorizer,
        controllers: Controllers,
        find_leader: Callable[[], Awaitable[bool]],
        registry: Registry,
        log: Any,
    ) -> None:
        users = RememberedUsers(self._use)
        self._requests = UserRequests(config, authorizer, users, _reply, registry, log)
        self._agreement = Agreement(users, controllers, config.broker_name, log, find_leader, may_begin=False)
        self._requests.agreement = self._agreement

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return self._requests.handlers()

    def start(self) -> None:
        """Follow the controllers' table, where there is an access list; does nothing when it does already."""
        if self._requests.policy is not None:
            self._agreement.start()

    def stop(self) -> None:
        """Follow it no longer."""
        self._agreement.stop()

    def _use(self, table: UserTable) -> None:
        if self._requests.policy is not None:
            self._requests.policy.use(table)


def _reply(_position: int, peer: Peer, reply: Command) -> None:
    peer.send(reply)
