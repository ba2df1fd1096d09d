"""The body of an error is what RFC 9457 says."""

from __future__ import annotations

import json

from runtime.problems import PROBLEM_TYPE, problem_body


def test_the_body_of_an_error() -> None:
    """Its type, the status in words, a word for programs and a sentence for people."""
    assert PROBLEM_TYPE == "application/problem+json"
    assert json.loads(problem_body(404, "no_such_topic", "there is no topic plant")) == {
        "type": "about:blank",
        "title": "Not Found",
        "status": 404,
        "detail": "there is no topic plant",
        "reason": "no_such_topic",
    }
