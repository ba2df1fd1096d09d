"""SCRAM-SHA-256 (RFC 5802, RFC 7677): proof of a password without sending it, and the server's proof in return.

    client-first   n,,n=ann,r=CLIENTNONCE
    server-first   r=CLIENTNONCE+SERVERNONCE,s=SALT,i=ITERATIONS
    client-final   c=biws,r=CLIENTNONCE+SERVERNONCE,p=PROOF
    server-final   v=SIGNATURE

Neither stored credentials nor the messages of an exchange are sufficient to log in. Without channel binding.

    SCRAM-SHA-256$ITERATIONS:SALT$STOREDKEY:SERVERKEY       salt and keys in base64, as PostgreSQL stores it

Invariant: the exchange with an unknown user looks like that with a known one (same salt each time), and fails at the
end. Pure: randomness is passed in.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import stringprep
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

from remoting.protocol.errors import LightMQError

MECHANISM = "SCRAM-SHA-256"
PREFIX = f"{MECHANISM}$"

ITERATIONS = 16_384
"""Iterations of new credentials: some 10 ms of a core, for an attacker who guesses and for the device that connects."""
ITERATIONS_MIN = 4_096
"""The minimum of RFC 7677."""
ITERATIONS_MAX = 2_000_000
"""More would let one line of the file occupy a thread for seconds."""

SALT_BYTES = 16
NONCE_BYTES = 18
MESSAGE_BYTES_MAX = 4_096
"""Longest message of a client; a longer one is refused."""

PROHIBITED = (
    stringprep.in_table_c12, stringprep.in_table_c21_c22, stringprep.in_table_c3, stringprep.in_table_c4,
    stringprep.in_table_c5, stringprep.in_table_c6, stringprep.in_table_c7, stringprep.in_table_c8,
    stringprep.in_table_c9,
)  # fmt: skip


class ScramError(LightMQError):
    """The exchange cannot continue; the text reveals nothing about the password."""


@dataclass(slots=True, frozen=True)
class Stored:
    """What the server stores of one password."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    def __str__(self) -> str:
        salt, stored_key, server_key = map(_encoded, (self.salt, self.stored_key, self.server_key))
        return f"{PREFIX}{self.iterations}:{salt}${stored_key}:{server_key}"


def derive(password: str | bytes, salt: bytes, iterations: int = ITERATIONS) -> Stored:
    """The credential to store for a password. Raises ScramError when it contains characters that are not allowed."""
    salted = hashlib.pbkdf2_hmac("sha256", prepare(password), salt, iterations)
    client_key = _hmac(salted, b"Client Key")
    return Stored(iterations, salt, hashlib.sha256(client_key).digest(), _hmac(salted, b"Server Key"))


def parse_stored(text: str) -> Stored:
    """A stored credential from its text. Raises ScramError."""
    try:
        mechanism, parameters, keys = text.split("$")
        iterations, salt = parameters.split(":")
        stored_key, server_key = keys.split(":")
        found = Stored(int(iterations), _decoded(salt), _decoded(stored_key), _decoded(server_key))
    except ValueError as error:
        raise ScramError("not of the form SCRAM-SHA-256$iterations:salt$stored key:server key") from error
    if mechanism != MECHANISM or len(found.stored_key) != 32 or len(found.server_key) != 32 or not found.salt:
        raise ScramError("not a credential of SCRAM-SHA-256")
    if not ITERATIONS_MIN <= found.iterations <= ITERATIONS_MAX:
        raise ScramError(f"iterations are {ITERATIONS_MIN} to {ITERATIONS_MAX}")
    return found


def verify_password(stored: str, password: bytes) -> bool:
    """Whether a password sent in the clear belongs to the credential; takes milliseconds."""
    try:
        known = parse_stored(stored)
        return hmac.compare_digest(derive(password, known.salt, known.iterations).stored_key, known.stored_key)
    except ScramError:
        return False


def prepare(password: str | bytes) -> bytes:
    """SASLprep (RFC 4013): one spelling of what looks the same. Raises ScramError for characters that are not
    allowed."""
    try:
        text = password.decode() if isinstance(password, bytes) else password
    except UnicodeDecodeError as error:
        raise ScramError("a password of SCRAM is UTF-8") from error
    mapped = (" " if stringprep.in_table_c12(one) else one for one in text if not stringprep.in_table_b1(one))
    text = unicodedata.normalize("NFKC", "".join(mapped))
    if not text or any(prohibited(one) for one in text for prohibited in PROHIBITED):
        raise ScramError("a password of SCRAM is not empty and holds no control characters")
    if any(map(stringprep.in_table_d1, text)):
        # Text from right to left must not be mixed with text from left to right, and must stand at both ends.
        mixed = any(map(stringprep.in_table_d2, text))
        if mixed or not (stringprep.in_table_d1(text[0]) and stringprep.in_table_d1(text[-1])):
            raise ScramError("a password of SCRAM does not mix directions of writing")
    return text.encode()


def decoy(username: str, key: bytes, like: str | None = None) -> Stored:
    """The credential that stands for an unknown user: always the same for a name, and no proof fits it; `like` is a
    typical credential here."""
    digest = hashlib.blake2b(username.encode("utf-8", "surrogatepass"), key=key, digest_size=64).digest()
    iterations = ITERATIONS if like is None else parse_stored(like).iterations
    return Stored(iterations, digest[:SALT_BYTES], digest[:32], digest[32:])


class ScramServer:
    """The server's side of one exchange."""

    def __init__(
        self,
        lookup: Callable[[str], str | None],
        *,
        nonce: bytes,
        decoy_key: bytes,
        like: Callable[[str], str | None] = lambda _username: None,
    ) -> None:
        """`lookup` returns a user's stored credential; one of another mechanism counts as none, and `like` returns some
        other user's, whose parameters an unknown user's credential copies."""
        self._lookup = lookup
        self._like = like
        self._nonce = base64.b64encode(nonce).decode()
        self._decoy_key = decoy_key
        self._header = ""
        self._transcript = ""
        self._both_nonces = ""
        self._known: Stored | None = None
        self._exists = False
        self.username = ""

    def first(self, message: bytes) -> bytes:
        """The answer to client-first. Raises ScramError."""
        text = _text(message)
        flag, _, rest = text.partition(",")
        authority, _, bare = rest.partition(",")
        if flag not in ("n", "y"):
            raise ScramError("channel binding is not offered")
        if authority:
            raise ScramError("an authorization identity is not supported")
        fields = bare.split(",")
        if len(fields) < 2 or not fields[0].startswith("n=") or not fields[1].startswith("r="):
            raise ScramError("client-first is not of the form n,,n=user,r=nonce")
        self.username, nonce = _unescaped(fields[0][2:]), fields[1][2:]
        if not self.username or not nonce:
            raise ScramError("client-first without a user name or nonce")
        self._header = f"{flag},,"
        self._both_nonces = nonce + self._nonce
        self._known, self._exists = self._find(self.username)
        answer = f"r={self._both_nonces},s={_encoded(self._known.salt)},i={self._known.iterations}"
        self._transcript = f"{bare},{answer}"
        return answer.encode()

    def final(self, message: bytes) -> bytes | None:
        """The answer to client-final; None when the proof is wrong. Raises ScramError."""
        known = self._known
        if known is None:
            raise ScramError("client-final before client-first")
        self._known = None  # an exchange has one attempt
        without_proof, separator, proof = _text(message).rpartition(",p=")
        fields = without_proof.split(",")
        if not separator or len(fields) < 2 or fields[0] != f"c={_encoded(self._header.encode())}":
            raise ScramError("client-final is not of the form c=…,r=…,p=…")
        if fields[1] != f"r={self._both_nonces}":
            raise ScramError("client-final with another nonce")
        transcript = f"{self._transcript},{without_proof}".encode()
        try:
            given = _decoded(proof)
        except ValueError as error:
            raise ScramError("a proof that is not base64") from error
        if len(given) != 32:
            raise ScramError("a proof of another length")
        signature = _hmac(known.stored_key, transcript)
        client_key = bytes(one ^ other for one, other in zip(given, signature, strict=True))
        fits = hmac.compare_digest(hashlib.sha256(client_key).digest(), known.stored_key)
        if not (fits and self._exists):
            return None
        return f"v={_encoded(_hmac(known.server_key, transcript))}".encode()

    def _find(self, username: str) -> tuple[Stored, bool]:
        text = self._lookup(username)
        if text is None or not text.startswith(PREFIX):
            return decoy(username, self._decoy_key, self._like(username)), False
        return parse_stored(text), True


def _text(message: bytes) -> str:
    if len(message) > MESSAGE_BYTES_MAX:
        raise ScramError(f"a message of more than {MESSAGE_BYTES_MAX} bytes")
    try:
        text = message.decode()
    except UnicodeDecodeError as error:
        raise ScramError("a message that is not UTF-8") from error
    if any(unicodedata.category(one) == "Cc" for one in text):
        raise ScramError("a message with control characters")
    return text


def _unescaped(name: str) -> str:
    parts = name.split("=")
    if any(part[:2] not in ("2C", "3D") for part in parts[1:]):
        raise ScramError("a user name with = that stands for nothing")
    return parts[0] + "".join(("," if part[:2] == "2C" else "=") + part[2:] for part in parts[1:])


def _hmac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")


def _encoded(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from error
