"""Authorization: the one check before anything is shown or changed.

Whether a peer may send requests at all (this machine, or a valid signature) is decided before, by `Access`. Here its
identity meets an action on a resource. Without a policy every admitted peer may do everything; a policy comes from an
access list or a test. Invariant: a refusal is Refused(NO_PERMISSION) naming action and resource, never silence. Loop
thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, cast, runtime_checkable

from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import Peer
from remoting.transport.signature import ACCESS_KEY_FIELD

IDENTITY_ATTRIBUTE = "identity"
TRUSTED_ATTRIBUTE = "trusted"
"""Set on peers of this process, which are parts of the same installation: a proxy checks its own rules for each of its
clients, the broker speaks for itself."""
ANONYMOUS = "anonymous"

Policy = Callable[[str, str, str], bool]
"""(identity, action, resource) -> allowed."""
RequestPolicy = Callable[[str, str, str, int, str], bool]
"""The same, with the request's code and the host it comes from: the `allows` of a policy that depends on them."""
CONSUME = "consume"


class TopicVerdict(Protocol):
    """Whether one MQTT topic may be read."""

    @property
    def allowed(self) -> bool:
        """Whether the request may be served."""
        ...

    @property
    def reason(self) -> str:
        """Why it may not be; a metric label."""
        ...


TopicJudge = Callable[[bytes], TopicVerdict]
"""Judges an MQTT topic by its name."""


@runtime_checkable
class Readable(Protocol):
    """A policy that can also judge topic by topic."""

    def readable(self, identity: str, topic_filter: str, host: str, /) -> TopicJudge | None:
        """What judges the topics of a filter of which some may be read, from this address; None when none may."""


class Authorizer:
    """Asks the policy; without one everything is allowed at the cost of one comparison."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.policy = policy
        """What decides from now on; None: everything is allowed."""
        self.refused = 0

    @property
    def open(self) -> bool:
        """True when nothing can be refused: hot paths then skip collecting the resources."""
        return self.policy is None

    def trusts(self, peer: Peer) -> bool:
        """True when nothing can be refused to this peer."""
        return self.policy is None or TRUSTED_ATTRIBUTE in peer.attributes

    def authorize(self, peer: Peer, command: Command, action: str, resource: str) -> None:
        """Return when the peer may do `action` on `resource`.

        Raises:
            Refused: NO_PERMISSION.
        """
        if self.policy is None or self.trusts(peer):
            return
        if not self._judged(peer, command, action, resource):
            self.refused += 1
            identity = self.identity(peer, command)
            raise Refused(ResponseCode.NO_PERMISSION, f"{identity} may not {action} {resource!r}")

    def allows(self, peer: Peer, command: Command, action: str, resource: str) -> bool:
        """Whether the peer may do `action` on `resource`; a "no" is no refusal yet."""
        if self.policy is None or self.trusts(peer):
            return True
        return self._judged(peer, command, action, resource)

    def _judged(self, peer: Peer, command: Command, action: str, resource: str) -> bool:
        identity, policy = self.identity(peer, command), cast("Policy", self.policy)
        per_request: RequestPolicy | None = getattr(policy, "allows", None)
        if per_request is None:
            return policy(identity, action, resource)
        return per_request(identity, action, resource, command.code, host_of(peer))

    def readable(self, peer: Peer, command: Command, topic_filters: Sequence[str]) -> TopicJudge | None:
        """What judges whether the peer may read a topic; None when it may read all topics of these filters.

        Raises:
            Refused: NO_PERMISSION for a filter of which it may read nothing.
        """
        judge = None
        for one in topic_filters:
            if self.allows(peer, command, CONSUME, one):
                continue
            policy = self.policy
            identity = self.identity(peer, command)
            found = policy.readable(identity, one, host_of(peer)) if isinstance(policy, Readable) else None
            if found is None:
                self.authorize(peer, command, CONSUME, one)
            judge = found
        return judge

    def permits(self, identity: str, action: str, resource: str, *, counted: bool = True) -> bool:
        """The same for an identity proved elsewhere than by a request; empty: none was proved. A no is `counted`."""
        if self.policy is None or self.policy(identity or ANONYMOUS, action, resource):
            return True
        self.refused += counted
        return False

    @staticmethod
    def identity(peer: Peer, command: Command) -> str:
        """Name of the peer: what it was given at connection, the access key it signs with, or anonymous."""
        given = peer.attributes.get(IDENTITY_ATTRIBUTE)
        if isinstance(given, str):
            return given
        return command.fields.get(ACCESS_KEY_FIELD) or ANONYMOUS


def host_of(peer: Peer) -> str:
    """The peer's address without its port; of a peer in this process its own name."""
    return peer.address.rpartition(":")[0] or peer.address
