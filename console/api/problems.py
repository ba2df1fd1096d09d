"""Errors of the HTTP API, as `application/problem+json` (RFC 9457): a reason for programs and a sentence for people.

Invariant: what a broker refuses is told with the broker's words; what went wrong in this process is told without
details, which are in its log. Pure.
"""

from __future__ import annotations

from remoting.protocol.errors import LightMQError, LocalMisuse, NotOffered, Refused, RemoteViolation
from remoting.protocol.frames.codes import ResponseCode
from remoting.transport.failures import ConnectionLost, RequestTimeout
from runtime.problems import PROBLEM_TYPE, problem_body

CONTENT_TYPE = PROBLEM_TYPE
STATUSES = {
    ResponseCode.NO_PERMISSION: (403, "forbidden"),
    ResponseCode.QUERY_NOT_FOUND: (404, "not_found"),
    ResponseCode.TOPIC_NOT_EXIST: (404, "not_found"),
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: (404, "not_found"),
    ResponseCode.INVALID_PARAMETER: (400, "bad_parameter"),
    ResponseCode.MESSAGE_ILLEGAL: (400, "bad_parameter"),
    ResponseCode.SYSTEM_BUSY: (503, "busy"),
    ResponseCode.SERVICE_NOT_AVAILABLE: (503, "unavailable"),
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: (501, "not_supported"),
}


class ApiProblem(Exception):
    """A request that gets an error as its answer."""

    def __init__(self, status: int, reason: str, detail: str, headers: dict[str, str] | None = None) -> None:
        """`reason`: a word for programs."""
        super().__init__(detail)
        self.status = status
        self.reason = reason
        self.detail = detail
        self.headers = headers or {}

    def body(self) -> bytes:
        """Return the JSON of the error."""
        return problem_body(self.status, self.reason, self.detail)


def problem_of(error: LightMQError) -> ApiProblem:
    """Return how an error of a request to a broker or controller is told."""
    if isinstance(error, NotOffered):
        return ApiProblem(501, "not_supported", error.remark)
    if isinstance(error, Refused):
        status, reason = STATUSES.get(error.code, (409, "refused"))
        return ApiProblem(status, reason, error.remark)
    if isinstance(error, RequestTimeout):
        return ApiProblem(504, "timeout", "the broker did not answer in time")
    if isinstance(error, ConnectionLost):
        return ApiProblem(503, "unavailable", str(error))
    if isinstance(error, RemoteViolation):
        return ApiProblem(502, "unreadable", "the broker's answer cannot be read")
    if isinstance(error, LocalMisuse):
        return ApiProblem(400, "bad_parameter", str(error))
    return ApiProblem(503, "unavailable", str(error))


def not_found(what: str) -> ApiProblem:
    """Return the error for something that does not exist."""
    return ApiProblem(404, "not_found", what)


def bad(detail: str) -> ApiProblem:
    """Return the error for a value that makes no sense."""
    return ApiProblem(400, "bad_parameter", detail)
