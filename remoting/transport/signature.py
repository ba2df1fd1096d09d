"""Signed requests as RocketMQ's clients make them: `AccessKey` and `Signature` among a request's fields.

Signature = base64(HMAC-SHA1(secret, the values of all other fields in the order of their names, then the body)). It
shows that the sender knows the secret and that nothing was changed; it hides nothing and a copy of it can be sent
again, so off the machine it belongs inside TLS.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass

from remoting.protocol.commands import Command

ACCESS_KEY_FIELD = "AccessKey"
SIGNATURE_FIELD = "Signature"


def signature(fields: Mapping[str, str], body: bytes, secret: str) -> str:
    """The signature of a request with these fields (a `Signature` among them is left out) and body."""
    content = "".join(fields[name] for name in sorted(fields) if name != SIGNATURE_FIELD).encode()
    # SHA-1 is what RocketMQ's clients use; as a keyed hash it is still sound.
    digest = hmac.new(secret.encode(), content + body, hashlib.sha1).digest()
    return base64.b64encode(digest).decode()


@dataclass(frozen=True, slots=True)
class Signer:
    """The key a client signs its requests with."""

    access_key: str
    secret: str

    def sign(self, command: Command) -> None:
        """Add `AccessKey` and `Signature` to the command's fields; call it when they are complete."""
        command.fields[ACCESS_KEY_FIELD] = self.access_key
        command.fields[SIGNATURE_FIELD] = signature(command.fields, command.body, self.secret)
