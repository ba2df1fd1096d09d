"""Authorization: the one check before anything is shown or changed, for requests and administration pages.

`Access` decides before whether a peer may send requests at all (this machine, or a valid signature). Here its identity
meets an action on a resource. Without a policy every admitted peer may do everything; a policy comes from an access
list or a test. `PageAccess` proves the key of a page's reader by HTTP, then asks the same policy:

    Authorization: Basic base64(key:secret)      what browsers, curl and Prometheus' basic_auth send
    Authorization: Bearer key:secret             the line of a key file as it stands, for Prometheus' credentials_file

Keys are required as for requests: of no client on this machine while there is no access list, of every client else;
with a list a peer without a key is anonymous, on this machine too. Pages without an action are for probes, and reveal
nothing but yes or no.
Invariants: a refusal is Refused(NO_PERMISSION) naming action and resource, never silence; an unknown key and a wrong
secret get the same answer; no secret is logged. Loop rule: on the loop's thread.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol, runtime_checkable

from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.server.peer import is_loopback
from remoting.server.router import Access
from remoting.transport.contracts import Peer
from remoting.transport.signature import ACCESS_KEY_FIELD

IDENTITY_ATTRIBUTE = "identity"
TRUSTED_ATTRIBUTE = "trusted"
"""Set on peers of this process, which are parts of the same installation: a proxy checks its own rules for each of its
clients, the broker speaks for itself."""
ANONYMOUS = "anonymous"

Policy = Callable[[str, str, str], bool]
"""(identity, action, resource) -> allowed."""
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

    def readable(self, identity: str, topic_filter: str, /) -> TopicJudge | None:
        """What judges the topics of a filter of which some may be read; None when none may."""


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
        identity = self.identity(peer, command)
        if not self.policy(identity, action, resource):
            self.refused += 1
            raise Refused(ResponseCode.NO_PERMISSION, f"{identity} may not {action} {resource!r}")

    def allows(self, peer: Peer, command: Command, action: str, resource: str) -> bool:
        """Whether the peer may do `action` on `resource`; a "no" is no refusal yet."""
        if self.policy is None or self.trusts(peer):
            return True
        return self.policy(self.identity(peer, command), action, resource)

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
            found = policy.readable(self.identity(peer, command), one) if isinstance(policy, Readable) else None
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


ALLOWED, UNPROVEN, FORBIDDEN = "", "unproven", "forbidden"


class PageAccess:
    """Answers for the administration port of one process; see `runtime.admin.Guard`."""

    def __init__(self, access: Access, authorizer: Authorizer, actions: Mapping[str, str]) -> None:
        """`actions`: page -> the action that `authorize` checks; empty for public pages."""
        self._access = access
        self._authorizer = authorizer
        self._actions = dict(actions)

    @property
    def pages(self) -> Collection[str]:
        """What it can be asked about."""
        return self._actions.keys()

    def proves(self, authorization: str) -> bool:
        """Whether the header has a known key with its secret: no page in a browser can send one."""
        return self._access.knows_secret(*credentials(authorization))

    def judge(self, page: str, address: str, authorization: str, *, counted: bool = True) -> str:
        """ALLOWED when the peer may see the page; UNPROVEN when a key would help, FORBIDDEN when another one would.

        `counted`: whether a no is a refusal.
        """
        action = self._actions[page]
        if not action:
            return ALLOWED
        key, secret = credentials(authorization)
        identity = self._access.proved_by_secret(key, secret, loopback=is_loopback(address))
        if identity is None:
            return UNPROVEN
        if self._authorizer.permits(identity, action, page, counted=counted):
            return ALLOWED
        return FORBIDDEN if identity else UNPROVEN


def credentials(authorization: str) -> tuple[str, str]:
    """Key and secret of the header; two empty texts where it holds none."""
    scheme, _, rest = authorization.partition(" ")
    rest = rest.strip()
    if scheme.lower() == "basic":
        try:
            rest = base64.b64decode(rest, validate=True).decode()
        except (binascii.Error, ValueError):
            return "", ""
    elif scheme.lower() != "bearer":
        return "", ""
    key, _, secret = rest.partition(":")
    return key, secret
