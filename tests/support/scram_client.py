"""The client's side of SCRAM-SHA-256, written from RFC 5802 section 3."""

from __future__ import annotations

import base64
import hashlib
import hmac


class ScramClient:
    """One exchange."""

    def __init__(self, user: str, password: str, *, header: str = "n,,", nonce: str = "abc") -> None:
        self._password = password
        self._header = header
        self._bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
        self._said = ""
        self._salted = b""

    def first(self) -> bytes:
        """client-first."""
        return (self._header + self._bare).encode()

    def final(self, server_first: bytes) -> bytes:
        """client-final."""
        fields = dict(part.split("=", 1) for part in server_first.decode().split(","))
        salt = base64.b64decode(fields["s"])
        self._salted = hashlib.pbkdf2_hmac("sha256", self._password.encode(), salt, int(fields["i"]))
        client_key = hmac.digest(self._salted, b"Client Key", "sha256")
        without = f"c={base64.b64encode(self._header.encode()).decode()},r={fields['r']}"
        self._said = f"{self._bare},{server_first.decode()},{without}"
        signature = hmac.digest(hashlib.sha256(client_key).digest(), self._said.encode(), "sha256")
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        return f"{without},p={base64.b64encode(proof).decode()}".encode()

    def believes(self, server_final: bytes | None) -> bool:
        """Whether the server has proved that it knows the user."""
        server_key = hmac.digest(self._salted, b"Server Key", "sha256")
        return server_final == b"v=" + base64.b64encode(hmac.digest(server_key, self._said.encode(), "sha256"))
