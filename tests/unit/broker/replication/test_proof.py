"""Only a holder of the secret can prove it, and a proof is valid for one connection."""

from __future__ import annotations

from broker.replication.frames import NO_PROOF, PROOF_BYTES, prove, proved

NONCE, OTHER = b"n" * 16, b"o" * 16


def test_a_proof_belongs_to_secret_nonce_and_content():
    """Another secret, another connection or another content: not proved."""
    proof = prove("secret", NONCE, b"content")
    assert len(proof) == PROOF_BYTES
    assert proved("secret", NONCE, b"content", proof)
    assert not proved("secret", OTHER, b"content", proof)
    assert not proved("secret", NONCE, b"Content", proof)
    assert not proved("Secret", NONCE, b"content", proof)
    assert not proved("secret", NONCE, b"content", NO_PROOF)


def test_without_a_secret_no_proof_is_needed():
    """A group without a secret neither makes proofs nor requires them."""
    assert prove(None, NONCE, b"content") == NO_PROOF
    assert proved(None, NONCE, b"content", b"anything")
