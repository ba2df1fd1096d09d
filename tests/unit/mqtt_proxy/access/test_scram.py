"""SCRAM-SHA-256 against the RFC's own example, a client written from its text, and all invalid messages."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from mqtt_proxy.access import scram
from mqtt_proxy.access.scram import (
    ITERATIONS_MIN,
    ScramError,
    ScramServer,
    derive,
    parse_stored,
    prepare,
    verify_password,
)

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
EXAMPLE = derive("pencil", SALT, 4096)
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"


def server(**users: str) -> ScramServer:
    made = ScramServer(users.get, nonce=b"n" * 18, decoy_key=b"k" * 32)
    made._nonce = SERVER_NONCE
    return made


def final_message(server_first: bytes, client_first_bare: str, password: str, header: str = "n,,") -> bytes:
    """A client's final message, from RFC 5802 section 3."""
    fields = dict(part.split("=", 1) for part in server_first.decode().split(","))
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), base64.b64decode(fields["s"]), int(fields["i"]))
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    without = f"c={base64.b64encode(header.encode()).decode()},r={fields['r']}"
    said = f"{client_first_bare},{server_first.decode()},{without}".encode()
    signature = hmac.digest(hashlib.sha256(client_key).digest(), said, "sha256")
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    return f"{without},p={base64.b64encode(proof).decode()}".encode()


def test_the_example_of_rfc_7677() -> None:
    """Byte by byte."""
    made = server(user=str(EXAMPLE))
    first = made.first(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert first == b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    said = made.final(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert said == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert made.username == "user"


def test_the_password_decides_once() -> None:
    """An exchange allows one attempt."""
    for password, right in (("pencil", True), ("pencils", False)):
        made = server(user=str(EXAMPLE))
        bare = "n=user,r=abc"
        answer = final_message(made.first(f"y,,{bare}".encode()), bare, password, "y,,")
        assert (made.final(answer) is not None) is right
        with pytest.raises(ScramError, match="before client-first"):
            made.final(answer)


@pytest.mark.parametrize("users", [{}, {"user": "$argon2id$v=19$m=8,t=1,p=1$c2FsdA$aGFzaA"}])
def test_a_user_without_a_credential_fails_in_the_same_way(users: dict[str, str]) -> None:
    """With the same salt each time, so that asking twice reveals nothing either."""
    firsts = [server(**users).first(b"n,,n=user,r=abc") for _ in range(2)]
    assert firsts[0] == firsts[1]
    assert f",i={scram.ITERATIONS}".encode() in firsts[0]
    made = server(**users)
    assert made.final(final_message(made.first(b"n,,n=user,r=abc"), "n=user,r=abc", "pencil")) is None


def test_names_with_commas_and_equals_signs() -> None:
    """They are escaped on the wire."""
    made = server(**{"a,b=c": str(EXAMPLE)})
    bare = "n=a=2Cb=3Dc,r=abc"
    assert made.final(final_message(made.first(f"n,,{bare}".encode()), bare, "pencil"))
    assert made.username == "a,b=c"


@pytest.mark.parametrize(
    "message",
    [
        b"", b"n", b"n,,", b"n,,n=user", b"n,,r=abc,n=user", b"n,,n=,r=abc", b"n,,n=user,r=", b"n,,n=us=er,r=abc",
        b"n,,n=user=2,r=abc", b"p=tls-unique,,n=user,r=abc", b"n,a=root,n=user,r=abc", b"n,,m=x,n=user,r=abc",
        b"n,,n=us\0er,r=abc", b"\xff", b"n,,n=user,r=" + b"a" * 4_096,
    ],
)  # fmt: skip
def test_invalid_first_messages(message: bytes) -> None:
    """Refused before anything is looked up."""
    with pytest.raises(ScramError):
        server(user=str(EXAMPLE)).first(message)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: b"",
        lambda m: m.replace(b"c=biws", b"c=eSws"),
        lambda m: m.replace(b"r=abc", b"r=abd"),
        lambda m: m.partition(b",p=")[0],
        lambda m: m[:-4],
        lambda m: m + b"!",
        lambda m: b"\xff" + m,
    ],
)
def test_invalid_final_messages(change: object) -> None:
    """Another header, another nonce, or no proof."""
    made = server(user=str(EXAMPLE))
    message = final_message(made.first(b"n,,n=user,r=abc"), "n=user,r=abc", "pencil")
    with pytest.raises(ScramError):
        made.final(change(message))  # type: ignore[operator]


def test_stored_credentials() -> None:
    """They survive being written and read; anything else is no credential."""
    text = str(EXAMPLE)
    assert parse_stored(text) == EXAMPLE
    assert verify_password(text, b"pencil")
    assert not verify_password(text, b"pencils")
    assert not verify_password(text, b"\xff")
    assert not verify_password("SCRAM-SHA-256$", b"pencil")
    salt, keys = text.split("$")[1].split(":")[1], text.split("$")[2]
    for wrong in (
        "", text + "$", text.replace("SCRAM-SHA-256", "SCRAM-SHA-1"), text.replace("4096:", "4095:"),
        text.replace("4096:", "2000001:"), text.replace("4096:", "x:"), f"SCRAM-SHA-256$4096:${keys}",
        f"SCRAM-SHA-256$4096:{salt}$AA==:AA==", text.replace(salt, "!"),
    ):  # fmt: skip
        with pytest.raises(ScramError):
            parse_stored(wrong)
    assert ITERATIONS_MIN <= scram.ITERATIONS


def test_passwords_are_normalized() -> None:
    """The examples of RFC 4013, and what is refused."""
    assert prepare("I\u00adX") == b"IX"
    assert prepare("\u00aa") == b"a"
    assert prepare("\u2168") == b"IX"
    assert prepare("a\u00a0b") == b"a b"
    for wrong in ("", "\u0007", "\u0627\u0031", "\u0627a\u0627", b"\xff"):
        with pytest.raises(ScramError):
            prepare(wrong)


def test_an_unknown_user_is_answered_like_the_others() -> None:
    """An unusual iteration count would tell which users exist."""
    made = ScramServer({}.get, nonce=b"n", decoy_key=b"k", like=lambda _name: str(EXAMPLE))
    assert made.first(b"n,,n=user,r=abc").endswith(b",i=4096")
