"""Who may send requests: everyone on this machine, others only with a signature made by a known key.

Invariants: without keys peers on other machines get nothing but a refusal; a bound request is taken once, on the
connection it was signed for.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import cast

from remoting.protocol.errors import LocalMisuse, Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import Peer
from remoting.transport.signature import (
    ACCESS_KEY_FIELD,
    BOUND_PREFIX,
    CHALLENGE_BYTES,
    CHALLENGE_FIELD,
    COUNT_DIGITS_MAX,
    COUNT_FIELD,
    SIGNATURE_FIELD,
    bound_signature,
    signature,
)

PROVED_ATTRIBUTE = "proved"
"""Set on peers whose signature was valid once; see `remoting.server.intake`."""


SESSION_ATTRIBUTE = "signing session"
"""Where a peer keeps its challenge and the number of its last bound request."""


CHALLENGES_MAX = 10
"""How often a connection may request its challenge; more are refused, because nothing else limits them."""


@dataclass(slots=True)
class _Session:
    """What bound requests of one connection are held against."""

    challenge: bytes
    count: int = 0
    asked: int = 0
    """How often the challenge was requested."""


class Access:
    """Checks each request of a server; `keys` maps access keys to secrets."""

    def __init__(
        self,
        keys: Mapping[str, str] | None = None,
        *,
        open_to_all: bool = False,
        keys_count: bool = False,
        bound_only: bool = False,
    ) -> None:
        """`keys_count`: a claimed key is checked also where none is needed, because rights hang on it. `bound_only`:
        signatures that could be sent again are refused, those of RocketMQ's own clients among them."""
        self._bound_only = bound_only
        self._keys = dict(keys or {})
        self._open_to_all = open_to_all
        self._keys_count = keys_count

    def trusts(self, peer: Peer) -> bool:
        """Whether the peer needs no proof for anything."""
        return (peer.loopback or self._open_to_all) and not self._keys_count

    def knows(self, command: Command) -> bool:
        """Whether the request claims a key that is known; nothing is proved by that."""
        return SIGNATURE_FIELD in command.fields and command.fields.get(ACCESS_KEY_FIELD) in self._keys

    def admit(self, peer: Peer, command: Command) -> Command | None:
        """The challenge when the request is for one, which needs no right; else None, or Refused as in `check`."""
        if command.code == RequestCode.SIGN_CHALLENGE:
            fresh = _Session(secrets.token_bytes(CHALLENGE_BYTES))
            session = cast("_Session", peer.attributes.setdefault(SESSION_ATTRIBUTE, fresh))
            session.asked += 1
            if session.asked > CHALLENGES_MAX:
                raise Refused(ResponseCode.NO_PERMISSION, "a connection needs its challenge once")
            return command.reply(fields={CHALLENGE_FIELD: session.challenge.hex()})
        self.check(peer, command)
        return None

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
        given = command.fields.get(SIGNATURE_FIELD, "")
        if given.startswith(BOUND_PREFIX):
            session, count = self._place(peer, command)
            expected = bound_signature(command, session.challenge, count, secret or "")
        else:
            self._check_kind()
            session, count = None, 0
            expected = signature(command.fields, command.body, secret or "")
        if not hmac.compare_digest(expected.encode(), given.encode()) or secret is None:
            raise Refused(ResponseCode.NO_PERMISSION, f"the signature by access key {access_key!r} is not valid")
        if session is not None:
            session.count = count
        peer.attributes[PROVED_ATTRIBUTE] = True

    def knows_secret(self, access_key: str, secret: str) -> bool:
        """Whether this is the secret of a known key; an unknown key costs as much as a wrong secret."""
        known = self._keys.get(access_key)
        same = hmac.compare_digest((known or "").encode(), secret.encode("utf-8", "surrogatepass"))
        return same and known is not None

    def proved_by_secret(self, access_key: str, secret: str, *, loopback: bool) -> str | None:
        """The key that a peer of an administration page proves by its secret itself; None when it is not let in.

        Empty for a peer that needs no proof and shows none that counts.
        """
        if (loopback or self._open_to_all) and not (self._keys_count and access_key):
            return ""
        return access_key if self.knows_secret(access_key, secret) else None

    @staticmethod
    def _place(peer: Peer, command: Command) -> tuple[_Session, int]:
        """Where a bound request stands on its connection. Raises Refused for one that has been there before."""
        session = peer.attributes.get(SESSION_ATTRIBUTE)
        digits = command.fields.get(COUNT_FIELD, "")
        if not isinstance(session, _Session) or not (digits.isascii() and digits.isdigit()):
            raise Refused(ResponseCode.NO_PERMISSION, "the request is signed for another connection")
        if len(digits) > COUNT_DIGITS_MAX or int(digits) <= session.count:
            raise Refused(ResponseCode.NO_PERMISSION, f"signed request {digits[:20]} came here before")
        return session, int(digits)

    def _check_kind(self) -> None:
        if self._bound_only:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                "this server takes no signature that could be sent again (bound_signatures_only): RocketMQ's own "
                "clients sign so",
            )


def parse_access_keys(pairs: Iterable[str]) -> dict[str, str]:
    """`key:secret` texts as a table. LocalMisuse names the one that is not of that form, without its secret."""
    keys: dict[str, str] = {}
    for number, pair in enumerate(pairs, 1):
        key, separator, secret = pair.partition(":")
        if not separator or not key or not secret:
            raise LocalMisuse(f"access_keys entry {number} is not of the form key:secret")
        keys[key] = secret
    return keys
