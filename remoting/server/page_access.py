"""Who may see which page of an administration port: its key is proved by HTTP, and the one `authorize()` decides.

    Authorization: Basic base64(key:secret)      what browsers, curl and Prometheus' basic_auth send
    Authorization: Bearer key:secret             the line of a key file as it stands, for Prometheus' credentials_file

Keys are required as for requests: of no client on this machine while there is no access list, of every client
else; with a list a peer without a key is anonymous, on this machine too. Pages without an action are for probes, and
reveal nothing but yes or no. Invariants: an unknown key and a wrong secret get the same answer; no secret is logged.
Loop rule: on the loop's thread; nothing is kept between two questions.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection, Mapping

from remoting.server.access import Access
from remoting.server.authorizer import Authorizer
from remoting.server.peer import is_loopback

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
