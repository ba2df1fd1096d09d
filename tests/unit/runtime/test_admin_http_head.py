"""Heads of requests: what clients send is read, ambiguous ones are refused."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.admin import BadRequest, Request, parse_head


def head(*lines: str) -> bytes:
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode("latin-1")


def test_what_prometheus_and_curl_send() -> None:
    sent = head("GET /metrics HTTP/1.1", "Host: a:8080", "User-Agent: x", "Authorization: Basic eA==", "Accept: */*")
    assert parse_head(sent) == Request("GET", "/metrics", "a:8080", "Basic eA==", keep_alive=True)


@pytest.mark.parametrize(
    ("first", "more", "keep_alive"),
    [
        ("GET / HTTP/1.1", ("Host: a", "Connection: close"), False),
        ("GET / HTTP/1.1", ("Host: a", "connection: Upgrade, Close"), False),
        ("GET / HTTP/1.0", (), False),
        ("GET / HTTP/1.0", ("Connection: Keep-Alive",), True),
    ],
)
def test_how_long_a_connection_is_kept(first: str, more: tuple[str, ...], keep_alive: bool) -> None:
    assert parse_head(head(first, *more)).keep_alive is keep_alive


@pytest.mark.parametrize(
    ("target", "path", "host"),
    [
        ("/metrics?name[]=x", "/metrics", "a"), ("http://b:1/status?x", "/status", "b:1"), ("HTTP://b", "/", "b"),
        ("http://b?x", "/", "b"), ("/", "/", "a"),
    ],
)  # fmt: skip
def test_targets(target: str, path: str, host: str) -> None:
    """Of an absolute target the host counts, not that of the header."""
    found = parse_head(head(f"GET {target} HTTP/1.1", "Host: a"))
    assert (found.path, found.host) == (path, host)


@pytest.mark.parametrize(
    "lines",
    [
        ("nonsense",), ("GET  / HTTP/1.1", "Host: a"), ("GET / HTTP/2.0", "Host: a"),
        ("GET metrics HTTP/1.1", "Host: a"),
        ("GET / HTTP/1.1",), ("GET / HTTP/1.1", "Host: a", "Host: b"), ("GET / HTTP/1.1", "Host : a"),
        ("GET / HTTP/1.1", "Host: a", " folded"), ("GET / HTTP/1.1", "Host: a\x00b"),
        ("GET / HTTP/1.1", "Host: a", "x"),
        ("POST / HTTP/1.1", "Host: a", "Content-Length: 5"), ("POST / HTTP/1.1", "Host: a", "Content-Length: 0, 5"),
        ("POST / HTTP/1.1", "Host: a", "Transfer-Encoding: chunked"),
        ("GET / HTTP/1.1", "Host: a", "Authorization: Basic a", "Authorization: Basic b"),
        ("GET / HTTP/1.1", "Host: a\nAuthorization: x"), ("GET / HTTP/1.1\nX: y", "Host: a"), ("",),
    ],
)  # fmt: skip
def test_ambiguous_heads(lines: tuple[str, ...]) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_head(head(*lines))
    assert caught.value.status == 400


@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_bad(data: bytes) -> None:
    """No other result, whatever the input."""
    for sent in (data + b"\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\n" + data + b"\r\n\r\n"):
        with contextlib.suppress(BadRequest):
            assert isinstance(parse_head(sent), Request)
