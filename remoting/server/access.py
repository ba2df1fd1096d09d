"""Who may send requests: everyone on this machine, others only with a signature made by a known key.

Invariant: without keys nobody off this machine gets anything but a refusal.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping

from remoting.protocol.codes import ResponseCode
from remoting.protocol.commands import Command
from remoting.protocol.errors import LocalMisuse, Refused
from remoting.transport.contracts import Peer
from remoting.transport.signature import ACCESS_KEY_FIELD, SIGNATURE_FIELD, signature

PROVED_ATTRIBUTE = "proved"
"""Set on peers whose signature was valid once; see `remoting.server.intake`."""


class Access:
    """Checks each request of a server; `keys` maps access keys to secrets."""

    def __init__(
        self, keys: Mapping[str, str] | None = None, *, open_to_all: bool = False, keys_count: bool = False
    ) -> None:
        """`keys_count`: a claimed key is checked also where none is needed, because rights hang on it."""
        self._keys = dict(keys or {})
        self._open_to_all = open_to_all
        self._keys_count = keys_count

    def trusts(self, peer: Peer) -> bool:
        """Whether the peer needs no proof for anything."""
        return (peer.loopback or self._open_to_all) and not self._keys_count

    def knows(self, command: Command) -> bool:
        """Whether the request claims a key that is known; nothing is proved by that."""
        return SIGNATURE_FIELD in command.fields and command.fields.get(ACCESS_KEY_FIELD) in self._keys

    def check(self, peer: Peer, command: Command) -> None:
        """Raise `Refused` (NO_PERMISSION) unless the peer may send this request."""
        access_key = command.fields.get(ACCESS_KEY_FIELD)
        if (peer.loopback or self._open_to_all) and not (self._keys_count and access_key):
            return
        if not access_key:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"requests from {peer.address} need AccessKey and Signature: only this machine may send without",
            )
        secret = self._keys.get(access_key)
        # An unknown key costs the same work as a wrong signature and gets the same answer.
        expected = signature(command.fields, command.body, secret or "")
        given = command.fields.get(SIGNATURE_FIELD, "")
        if not hmac.compare_digest(expected.encode(), given.encode()) or secret is None:
            raise Refused(ResponseCode.NO_PERMISSION, f"the signature by access key {access_key!r} is not valid")
        peer.attributes[PROVED_ATTRIBUTE] = True


def parse_access_keys(pairs: Iterable[str]) -> dict[str, str]:
    """`key:secret` texts as a table. LocalMisuse names the one that is not of that form, without its secret."""
    keys: dict[str, str] = {}
    for number, pair in enumerate(pairs, 1):
        key, separator, secret = pair.partition(":")
        if not separator or not key or not secret:
            raise LocalMisuse(f"access_keys entry {number} is not of the form key:secret")
        keys[key] = secret
    return keys
