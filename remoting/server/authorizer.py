"""Authorization: the check before anything is read or changed.

`Access` decides before whether a peer may send requests at all (this machine, or a valid signature). Here a policy
decides whether its identity may perform an action on a resource; without a policy every admitted peer may do
everything. A proxy names the client it acts for in its request; the client's rights then count instead of its own.
Invariant: a refusal is Refused(NO_PERMISSION) with action and resource. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import Peer
from remoting.transport.signature import ACCESS_KEY_FIELD

IDENTITY_ATTRIBUTE = "identity"
TRUSTED_ATTRIBUTE = "trusted"
"""Set on peers of this process, which belong to the same installation: a proxy checks its own rules for each of its
clients."""
ANONYMOUS = "anonymous"
ON_BEHALF_FIELD = "onBehalfOf"
"""Field of a request that a proxy makes for a client: the access key that the client proved, or empty."""
ON_BEHALF_HOST_FIELD = "onBehalfHost"
"""The address of that client, without its port."""
ACT_FOR = "act_for"

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
        """Why it may not, as a metric label."""
        ...


class RequestReceiver(NamedTuple):
    """Whose rights count for what a server sends without being asked for it: who sent a heartbeat."""

    identity: str
    host: str
    is_trusted: bool
    """A part of this process that acts for no client."""


TopicJudge = Callable[[bytes], TopicVerdict]
"""Judges an MQTT topic by its name."""


@runtime_checkable
class Readable(Protocol):
    """A policy that can also judge topic by topic."""

    def readable(self, identity: str, topic_filter: str, host: str, /) -> TopicJudge | None:
        """Return the judge of a filter's topics, of which some may be read from this address; None when none may."""


ACTOR_FIELD, ACTOR_ROLE_FIELD, ACTOR_HOST_FIELD = "actor", "actorRole", "actorHost"
"""Fields in which a console names who has signed in at it, where that is nobody with a key."""


class Authorizer:
    """Applies the policy; without one everything is allowed at the cost of one comparison."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.policy = policy
        """The current policy; None: everything is allowed."""
        self.refused = 0

    @property
    def open(self) -> bool:
        """True when nothing can be refused: hot paths then skip collecting the resources."""
        return self.policy is None

    def trusts(self, peer: Peer, command: Command) -> bool:
        """True when nothing can be refused of this request: the peer is trusted and does not act for a client."""
        return self.policy is None or (TRUSTED_ATTRIBUTE in peer.attributes and ON_BEHALF_FIELD not in command.fields)

    def authorize(self, peer: Peer, command: Command, action: str, resource: str) -> None:
        """Return when the peer may do `action` on `resource`.

        Raises:
            Refused: NO_PERMISSION.
        """
        if self.trusts(peer, command):
            return
        if not self._judged(peer, command, action, resource):
            self.refused += 1
            identity = self.subject(peer, command)
            raise Refused(ResponseCode.NO_PERMISSION, f"{identity} may not {action} {resource!r}")

    def allows(self, peer: Peer, command: Command, action: str, resource: str) -> bool:
        """Whether the peer may do `action` on `resource`; not counted as a refusal."""
        if self.trusts(peer, command):
            return True
        return self._judged(peer, command, action, resource)

    def _judged(self, peer: Peer, command: Command, action: str, resource: str) -> bool:
        identity, policy = self.subject(peer, command), self.policy
        assert policy is not None, "only a policy judges"
        per_request: RequestPolicy | None = getattr(policy, "allows", None)
        if per_request is None:
            return policy(identity, action, resource)
        return per_request(identity, action, resource, command.code, self.host(peer, command))

    def unseen(self, peer: Peer, command: Command, resource: str, absent: Refused) -> Refused:
        """Return the one refusal for a message that is not there, is hidden, or is not the peer's to read.

        It is `absent` for who may read `resource`, the topic that the request names, and NO_PERMISSION for others and
        where it names none (empty): so no answer depends on whether there is a message of somebody else.
        """
        if self.trusts(peer, command) or (resource and self._judged(peer, command, CONSUME, resource)):
            return absent
        self.refused += 1
        identity = self.subject(peer, command)
        return Refused(ResponseCode.NO_PERMISSION, f"{identity} may not read this message, if there is one")

    def receiver(self, peer: Peer, command: Command) -> RequestReceiver:
        """Return whose rights count for what is sent later to the sender of this request."""
        is_trusted = TRUSTED_ATTRIBUTE in peer.attributes and ON_BEHALF_FIELD not in command.fields
        return RequestReceiver(self.subject(peer, command), self.host(peer, command), is_trusted)

    def may_receive(self, receiver: RequestReceiver, action: str, resource: str) -> bool:
        """Whether a receiver may, at this moment, do `action` on `resource`; not counted as a refusal."""
        policy = self.policy
        if policy is None or receiver.is_trusted:
            return True
        per_request: RequestPolicy | None = getattr(policy, "allows", None)
        if per_request is None:
            return policy(receiver.identity, action, resource)
        return per_request(receiver.identity, action, resource, 0, receiver.host)

    def subject(self, peer: Peer, command: Command) -> str:
        """Return the identity whose rights count: a client that a proxy may act for, else the peer."""
        own, client = self.identity(peer, command), command.fields.get(ON_BEHALF_FIELD)
        if client is None or not self._may_act(peer, own):
            return own
        return client or ANONYMOUS

    def host(self, peer: Peer, command: Command) -> str:
        """Return the address of the same client or peer."""
        if ON_BEHALF_FIELD in command.fields and self._may_act(peer, self.identity(peer, command)):
            return command.fields.get(ON_BEHALF_HOST_FIELD, "")
        return host_of(peer)

    def actor(self, peer: Peer, command: Command) -> tuple[str, str, str] | None:
        """Return (name, role, address) of the person that a console names, if the peer may act for others.

        The rights are those of `subject` all the same: this is for the record of acts.
        """
        name = command.fields.get(ACTOR_FIELD)
        if not name or ON_BEHALF_FIELD in command.fields or not self._may_act(peer, self.identity(peer, command)):
            return None
        return name, command.fields.get(ACTOR_ROLE_FIELD, ""), command.fields.get(ACTOR_HOST_FIELD, "")

    def role(self, identity: str) -> str:
        """Return the role by which an identity may administer or look; empty for other rights, and without a policy."""
        role_for = getattr(self.policy, "role_for", None)
        if role_for is None:
            return ""
        return str(role_for(identity, "admin", "") or role_for(identity, "monitor", ""))

    def _may_act(self, peer: Peer, own: str) -> bool:
        return TRUSTED_ATTRIBUTE in peer.attributes or (self.policy is not None and self.policy(own, ACT_FOR, ""))

    def readable(self, peer: Peer, command: Command, topic_filters: Sequence[str]) -> TopicJudge | None:
        """Return the judge of the topics of these filters; None when the peer may read all of them.

        Raises:
            Refused: NO_PERMISSION for a filter of which it may read nothing.
        """
        judge = None
        for one in topic_filters:
            if self.allows(peer, command, CONSUME, one):
                continue
            policy = self.policy
            identity = self.subject(peer, command)
            found = policy.readable(identity, one, self.host(peer, command)) if isinstance(policy, Readable) else None
            if found is None:
                self.authorize(peer, command, CONSUME, one)
            judge = found
        return judge

    def permits(self, identity: str, action: str, resource: str, *, counted: bool = True) -> bool:
        """Whether an identity proved without a request (empty: none) may do this; `counted`: count a refusal."""
        if self.policy is None or self.policy(identity or ANONYMOUS, action, resource):
            return True
        self.refused += counted
        return False

    @staticmethod
    def identity(peer: Peer, command: Command) -> str:
        """Return the peer's name: assigned at connection, the access key it signs with, or anonymous."""
        given = peer.attributes.get(IDENTITY_ATTRIBUTE)
        if isinstance(given, str):
            return given
        return command.fields.get(ACCESS_KEY_FIELD) or ANONYMOUS


def host_of(peer: Peer) -> str:
    """Return the peer's address without its port; for a peer in this process the whole address."""
    return peer.address.rpartition(":")[0] or peer.address
