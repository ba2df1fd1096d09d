"""Who may do what: the one hook that every handler asks before it shows or changes anything.

Whether a peer may send requests at all (this machine, or a valid signature) is decided before, by the router's access
check. Here its identity meets an action on a resource. The default policy lets every admitted peer do everything; a
policy from the configuration or a test may refuse. Invariant: a refusal is Refused(NO_PERMISSION) naming action and
resource, never silence. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from remoting.protocol.codes import ResponseCode
from remoting.protocol.commands import Command
from remoting.protocol.errors import LocalMisuse, Refused
from remoting.server.access import Access
from remoting.transport.contracts import Peer
from remoting.transport.signature import ACCESS_KEY_FIELD

PUBLISH = "publish"
CONSUME = "consume"
SESSION = "session"
ADMIN = "admin"
IDENTITY_ATTRIBUTE = "identity"
TRUSTED_ATTRIBUTE = "trusted"
"""Set on peers of this process: a proxy asks its own rules for each of its clients."""
ANONYMOUS = "anonymous"

Policy = Callable[[str, str, str], bool]
"""(identity, action, resource) -> allowed."""


class Authorizer:
    """Asks the policy; without one everything is allowed at the cost of one comparison."""

    def __init__(self, policy: Policy | None = None) -> None:
        self._policy = policy
        self.refused = 0

    @property
    def open(self) -> bool:
        """True when nothing can be refused: hot paths then skip collecting the resources."""
        return self._policy is None

    def authorize(self, peer: Peer, command: Command, action: str, resource: str) -> None:
        """Return when the peer may do `action` on `resource`.

        Raises:
            Refused: NO_PERMISSION.
        """
        if self._policy is None or TRUSTED_ATTRIBUTE in peer.attributes:
            return
        identity = self.identity(peer, command)
        if not self._policy(identity, action, resource):
            self.refused += 1
            raise Refused(ResponseCode.NO_PERMISSION, f"{identity} may not {action} {resource!r}")

    def allows(self, peer: Peer, command: Command, action: str, resource: str) -> bool:
        """Whether the peer may do `action` on `resource`; a "no" is no refusal yet."""
        if self._policy is None or TRUSTED_ATTRIBUTE in peer.attributes:
            return True
        return self._policy(self.identity(peer, command), action, resource)

    @staticmethod
    def identity(peer: Peer, command: Command) -> str:
        """Name of the peer: what it was given at connection, the access key it signs with, or anonymous."""
        given = peer.attributes.get(IDENTITY_ATTRIBUTE)
        if isinstance(given, str):
            return given
        return command.fields.get(ACCESS_KEY_FIELD) or ANONYMOUS


def make_access(access_keys: Iterable[str], *, open_to_all: bool, keys_count: bool = False) -> Access:
    """The check of who may send requests at all. Raises LocalMisuse for an access key that is not `key:secret`.

    `keys_count`: what is allowed depends on the key, so a key is proved wherever it is claimed.
    """
    keys = {}
    for pair in access_keys:
        key, separator, secret = pair.partition(":")
        if not separator or not key or not secret:
            raise LocalMisuse("broker.access_keys: an entry is not of the form key:secret")
        keys[key] = secret
    return Access(keys, open_to_all=open_to_all, keys_count=keys_count)
