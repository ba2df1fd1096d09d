"""The opening request: accepted once, refused with a status, never raising."""

from __future__ import annotations

import random

import pytest

from mqtt_proxy.websocket import REQUEST_BYTES_MAX, Handshake, HandshakeOutcome, Rules

KEY = "dGhlIHNhbXBsZSBub25jZQ=="
ACCEPT = b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="  # the example of RFC 6455, 1.3
HEADERS = {
    "Host": "plant.example",
    "Upgrade": "websocket",
    "Connection": "keep-alive, Upgrade",
    "Sec-WebSocket-Key": KEY,
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Protocol": "chat, mqtt",
}


def request(line: str = "GET /mqtt HTTP/1.1", **changed: str | None) -> bytes:
    headers = HEADERS | {name.replace("_", "-"): value for name, value in changed.items()}
    lines = [line, *(f"{name}: {value}" for name, value in headers.items() if value is not None)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def shake(data: bytes, rules: Rules | None = None, *, step: int = 1 << 20) -> HandshakeOutcome | None:
    made = Handshake(rules or Rules())
    for position in range(0, len(data), step):
        outcome = made.feed(data[position : position + step])
        if outcome is not None:
            return outcome
    return None


@pytest.mark.parametrize("step", [1, 50, 1 << 20])
def test_accepted_however_it_is_cut(step: int) -> None:
    """[MQTT-6.0.0-4] 101 with the key's answer and the subprotocol known to both; no extension, whatever is offered."""
    outcome = shake(request(Sec_WebSocket_Extensions="permessage-deflate"), step=step)
    assert outcome is not None
    assert outcome.refusal == ""
    assert outcome.response.startswith(b"HTTP/1.1 101 ")
    lowered = outcome.response.lower()
    assert b"sec-websocket-accept: " + ACCEPT.lower() in lowered
    assert b"sec-websocket-protocol: mqtt\r\n" in lowered
    assert b"extensions" not in lowered


def test_bytes_after_the_request_are_returned() -> None:
    """The first frames may come with it."""
    outcome = shake(request() + b"\x82\x80frame")
    assert outcome is not None
    assert outcome.rest == b"\x82\x80frame"


def test_the_clients_first_known_subprotocol_is_chosen() -> None:
    """Older clients ask for the name that 3.1 used."""
    outcome = shake(request(Sec_WebSocket_Protocol="mqttv3.1, mqtt"))
    assert outcome is not None
    assert b"sec-websocket-protocol: mqttv3.1\r\n" in outcome.response.lower()


@pytest.mark.parametrize(
    ("host", "origin", "refusal"),
    [
        ("localhost:8083", "http://localhost:8083", ""),
        ("127.0.0.1:8083", "http://127.0.0.1:8083", ""),
        ("127.0.0.1:8083", "http://127.0.0.1:80", "another origin"),
        ("rebound.example:8083", "http://rebound.example:8083", "another origin"),
    ],
)
def test_a_page_of_the_requested_host_is_accepted_under_a_safe_name(host: str, origin: str, refusal: str) -> None:
    """Nothing is listed; clients that are no browsers, such as paho, send an origin too."""
    outcome = shake(request(Host=host, Origin=origin))
    assert outcome is not None
    assert refusal in outcome.refusal
    assert bool(outcome.refusal) == bool(refusal)


def test_configured_path_and_origins() -> None:
    """The query belongs to the page; a listed origin is accepted."""
    rules = Rules("/devices", ("https://plant.example",))
    good = shake(request("GET /devices?token=1 HTTP/1.1", Origin="https://plant.example"), rules)
    assert good is not None
    assert not good.refusal
    assert b"server:" not in good.response.lower()


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (request("GET / HTTP/1.1"), 404),
        (request("GET /mqtt/ HTTP/1.1"), 404),
        (request(Origin="https://evil.example"), 403),
        (request(Sec_WebSocket_Protocol=None), 400),
        (request(Sec_WebSocket_Protocol="chat"), 400),
        (request(Sec_WebSocket_Key=None), 400),
        (request(Sec_WebSocket_Key="short"), 400),
        (request(Sec_WebSocket_Key="!" * 24), 400),
        (request(Sec_WebSocket_Version="8"), 426),
        (request(Sec_WebSocket_Version=None), 400),
        (request(Upgrade="h2c"), 400),
        (request(Connection="close"), 400),
        (request(Host=None), 400),
        (request(Host="\xff\xff"), 400),
        (request(Sec_WebSocket_Protocol="m\xe9tt"), 400),
        (request("POST /mqtt HTTP/1.1"), 400),
        (b"GET /mqtt HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (bytes.fromhex("101000044d51545404020000000473656c66"), 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", 400),
        (b"\r\n\r\n" * 3, 400),
        (request(Cookie="x" * REQUEST_BYTES_MAX), 431),
        (b"GET /" + b"x" * REQUEST_BYTES_MAX, 431),
    ],
)
@pytest.mark.parametrize("step", [7, 1 << 20])
def test_refusals(data: bytes, status: int, step: int) -> None:
    """[MQTT-6.0.0-3] Each has its status and a closed connection, and the answer repeats nothing of the request."""
    outcome = shake(data, Rules(origins=("https://plant.example",)), step=step)
    assert outcome is not None
    assert outcome.response.startswith(b"HTTP/1.1 %d " % status), outcome
    assert outcome.refusal.startswith(f"{status}: ")
    assert b"Connection: close\r\n" in outcome.response
    assert b"evil" not in outcome.response
    assert (b"Sec-WebSocket-Version: 13" in outcome.response) is (status == 426)


def test_incomplete_requests_wait() -> None:
    """Their deadline is elsewhere."""
    whole = request()
    assert all(shake(whole[:size]) is None for size in range(1, len(whole)))


def test_changed_requests_never_raise() -> None:
    """A valid request with bytes changed, removed, doubled: refused, accepted or waiting."""
    seeded = random.Random(11)
    for _ in range(3_000):
        data = bytearray(request())
        for _ in range(seeded.randrange(1, 4)):
            place = seeded.randrange(len(data))
            kind = seeded.randrange(3)
            if kind == 0:
                data[place] = seeded.randrange(256)
            elif kind == 1:
                del data[place]
            else:
                data.insert(place, data[place])
        shake(bytes(data), step=seeded.choice((30, 1 << 20)))
