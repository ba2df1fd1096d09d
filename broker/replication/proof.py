"""Proof that both ends of a replication connection hold the group's secret, without sending it.

Each end draws a nonce; what it sends in the handshake is signed together with the other end's nonce, so that a recorded
handshake is worth nothing on another connection. Afterwards frames carry checksums, not signatures: on a network where
others can write into a connection, run it inside TLS or a tunnel.

Invariant: the secret appears in no frame and in no message. Pure: nonces come from the caller.
"""

from __future__ import annotations

import hashlib
import hmac

NONCE_BYTES = 16
PROOF_BYTES = 32
NO_PROOF = bytes(PROOF_BYTES)
"""What stands in a frame while the group has no secret."""


def prove(secret: str | None, nonce: bytes, content: bytes) -> bytes:
    """Return the signature of `content` for the end that drew `nonce`."""
    if secret is None:
        return NO_PROOF
    return hmac.new(secret.encode(), b"lightmq replication 1\0" + nonce + content, hashlib.sha256).digest()


def proved(secret: str | None, nonce: bytes, content: bytes, proof: bytes) -> bool:
    """Return whether `proof` shows that its sender holds `secret`; without a secret everybody may."""
    return secret is None or hmac.compare_digest(prove(secret, nonce, content), proof)
