"""Signed requests: in RocketMQ's form, and bound to their connection.

RocketMQ   Signature = base64(HMAC-SHA1(secret, the values of all other fields in the order of their names, the body))
gRPC       Signature = hex(HMAC-SHA1(secret, the header x-mq-date-time))
bound      Signature = "2:" base64(HMAC-SHA256(secret, challenge | u64 count | u32 code | fields with lengths | body))

All prove that the sender knows the secret; all but gRPC's also prove that nothing was changed. A request with
RocketMQ's signature can be replayed, even with another code, and gRPC's signature serves for any request. A bound one
is valid once, on the connection on which the server gave the challenge: `count` rises with each request. None is
encrypted; beyond one machine, use them inside TLS.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass

from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command

ACCESS_KEY_FIELD = "AccessKey"
SIGNATURE_FIELD = "Signature"
COUNT_FIELD = "SignatureCount"
"""Number of a bound request on its connection."""
CHALLENGE_FIELD = "challenge"
"""In the answer to SIGN_CHALLENGE: the challenge to which requests of this connection are bound, in hexadecimal."""
CHALLENGE_BYTES = 16
CHALLENGE_DIGITS_MAX = 128
COUNT_DIGITS_MAX = 18
BOUND_PREFIX = "2:"


def signature(fields: Mapping[str, str], body: bytes, secret: str) -> str:
    """Return the signature of a request with these fields (except a `Signature` among them) and body."""
    content = "".join(fields[name] for name in sorted(fields) if name != SIGNATURE_FIELD).encode()
    # RocketMQ's clients use SHA-1, which is still sound as a keyed hash.
    digest = hmac.new(secret.encode(), content + body, hashlib.sha1).digest()
    return base64.b64encode(digest).decode()


def date_signature(date_time: str, secret: str) -> str:
    """Return the signature of RocketMQ's gRPC clients, which covers nothing but the time of the request."""
    return hmac.new(secret.encode(), date_time.encode("utf-8", "replace"), hashlib.sha1).hexdigest()


def bound_signature(command: Command, challenge: bytes, count: int, secret: str) -> str:
    """Return the signature of the `count`-th request of the connection with this challenge."""
    parts = [challenge, count.to_bytes(8, "big"), command.code.to_bytes(4, "big", signed=True)]
    for name, value in sorted(command.fields.items()):
        if value and name != SIGNATURE_FIELD:  # peers may leave out an empty value
            for text in (name.encode(), value.encode()):
                parts += (len(text).to_bytes(4, "big"), text)
    mac = hmac.new(secret.encode(), b"".join(parts), hashlib.sha256)
    mac.update(len(command.body).to_bytes(8, "big"))
    mac.update(command.body)
    return BOUND_PREFIX + base64.b64encode(mac.digest()).decode()


@dataclass(frozen=True, slots=True)
class Signer:
    """The key a client signs its requests with."""

    access_key: str
    secret: str

    def sign(self, command: Command) -> None:
        """Add `AccessKey` and `Signature` to the command's fields, which must be complete."""
        command.fields.pop(COUNT_FIELD, None)  # left over from an earlier attempt on another connection
        command.fields[ACCESS_KEY_FIELD] = self.access_key
        command.fields[SIGNATURE_FIELD] = signature(command.fields, command.body, self.secret)

    def bound(self, answer: Command) -> BoundSigner | None:
        """Return the signer for a connection with this answer to SIGN_CHALLENGE; None if it has no challenge."""
        text = answer.fields.get(CHALLENGE_FIELD, "")
        if answer.code != ResponseCode.SUCCESS or not 2 * CHALLENGE_BYTES <= len(text) <= CHALLENGE_DIGITS_MAX:
            return None
        try:
            return BoundSigner(self, bytes.fromhex(text))
        except ValueError:
            return None


class BoundSigner:
    """Signs the requests of one connection, in the order in which they are sent."""

    __slots__ = ("_challenge", "_count", "_signer")

    def __init__(self, signer: Signer, challenge: bytes) -> None:
        self._signer = signer
        self._challenge = challenge
        self._count = 0

    def sign(self, command: Command) -> None:
        """Add the key, the request's number and the signature to the fields, which must be complete."""
        self._count += 1
        command.fields[ACCESS_KEY_FIELD] = self._signer.access_key
        command.fields[COUNT_FIELD] = str(self._count)
        command.fields[SIGNATURE_FIELD] = bound_signature(command, self._challenge, self._count, self._signer.secret)
