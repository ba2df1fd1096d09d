"""The head of an HTTP/1 request, as far as a few read-only pages need it: bytes in, a request or the reason why not.

    GET /metrics?x=1 HTTP/1.1 CRLF          -> method, path (a query is cut off)
    Host: localhost:8080 CRLF               -> host; that of an absolute target counts instead
    Authorization: Basic ... CRLF           -> authorization, as it stands
    Connection: close CRLF CRLF             -> keep_alive

Requests bring no body here: one that announces a body is refused, so that no byte of it can be taken for a request.
Invariant: what two readers could read differently (a folded line, a name with a space, Host twice) is refused. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

HEAD_BYTES_MAX = 8_192
"""Request line and headers together; a longer head is refused with 431."""
END = b"\r\n\r\n"

_LINE = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}) (\S{1,2048}) HTTP/1\.([01])\Z")
_FIELD = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*?)[ \t]*\Z")
_TARGET = re.compile(r"(?:https?://([^/?#]+))?(/[^?#]*|(?=[?#]|\Z))", re.IGNORECASE)
_ONCE = ("host", "authorization", "content-length", "transfer-encoding")


@dataclass(frozen=True, slots=True)
class Request:
    """One request."""

    method: str
    path: str
    host: str | None
    """What the client calls this server; None where it does not say."""
    authorization: str
    keep_alive: bool


class BadRequest(Exception):
    """The head cannot be served; the connection ends with this status."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


def parse_head(head: bytes) -> Request:
    """The request of these bytes, which end with an empty line. Raises BadRequest."""
    first, *lines = head.decode("latin-1").lstrip("\r\n").removesuffix("\r\n\r\n").split("\r\n")
    line = _LINE.match(first)
    if line is None:
        raise BadRequest(400, "this is no request of HTTP/1")
    target = _TARGET.match(line[2])
    if target is None or (not target[1] and not target[2]):
        raise BadRequest(400, "the target is no path")
    fields = _fields(lines)
    if fields.get("content-length", "0") != "0" or "transfer-encoding" in fields:
        raise BadRequest(400, "a request has no body here")
    host = target[1] or fields.get("host")
    if host is None and line[3] == "1":
        raise BadRequest(400, "a request of HTTP/1.1 has a Host")
    wanted = {word.strip() for word in fields.get("connection", "").lower().split(",")}
    keep_alive = "close" not in wanted and (line[3] == "1" or "keep-alive" in wanted)
    return Request(line[1], target[2] or "/", host, fields.get("authorization", ""), keep_alive)


def _fields(lines: list[str]) -> dict[str, str]:
    """Headers by their names in lower case; of one that is there twice the last, where that cannot do harm."""
    fields: dict[str, str] = {}
    for text in lines:
        found = _FIELD.match(text)
        if found is None:
            raise BadRequest(400, "a header line is malformed")
        name = found[1].lower()
        if name in fields and name in _ONCE:
            raise BadRequest(400, f"the header {name} is there twice")
        fields[name] = found[2]
    return fields
