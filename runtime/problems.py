"""The JSON of an error of the administration port, as `application/problem+json` (RFC 9457). Pure."""

from __future__ import annotations

from http import HTTPStatus

import msgspec

PROBLEM_TYPE = "application/problem+json"


class Problem(msgspec.Struct):
    """The body of an error."""

    type: str
    title: str
    status: int
    detail: str
    reason: str
    """A word for programs."""


def problem_body(status: int, reason: str, detail: str) -> bytes:
    """Return the body; `detail` is a sentence for people."""
    return msgspec.json.encode(Problem("about:blank", HTTPStatus(status).phrase, status, detail, reason))
