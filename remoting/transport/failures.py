"""Failures between two correct sides: unreachable, connection lost, no answer in time, not the master.

With most of these it is unknown whether the server carried out the request, so a repeated one may take effect twice.
"""

from __future__ import annotations

from remoting.protocol.bodies.controller_body import ACTING_FIELD, MASTER_ADDRESS_FIELD, MASTER_EPOCH_FIELD
from remoting.protocol.errors import LightMQError, Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command


class ConnectionLost(LightMQError):
    """The connection is closed, or closed before the answer came."""


class Unreachable(ConnectionLost):
    """No connection could be made; the text has host, port and a remedy."""

    def __init__(self, host: str, port: int, cause: BaseException) -> None:
        reason = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
        super().__init__(
            f"cannot reach {host}:{port} ({reason}): is the server running there? "
            f"Start one with `lightmq up`, or correct the address"
        )
        self.host = host
        self.port = port


class TlsFailed(Unreachable):
    """TLS failed: an untrusted certificate, a wrong name, no common version."""

    def __init__(self, host: str, port: int, reason: str) -> None:
        LightMQError.__init__(
            self,
            f"no TLS with {host}:{port} ({reason}): is its certificate made for that name and signed by an authority "
            "that is trusted here?",
        )
        self.host = host
        self.port = port


class RequestTimeout(LightMQError, TimeoutError):
    """No answer came in time; the server may still have carried out the request."""

    def __init__(self, code: int, address: str, timeout_ms: int) -> None:
        super().__init__(f"request {code} got no answer from {address} within {timeout_ms} ms")


OUTCOME_FIELD = "outcome"
"""Field of a NOT_MASTER answer: `unknown` when the request was begun while the broker was still the master."""
OUTCOME_UNKNOWN = "unknown"


class NotMaster(ConnectionLost):
    """The broker is not, or no longer, the master of its group; `address` is the master's, empty when unknown.

    `is_begun`: the request was begun while it still was, so it may have been carried out; otherwise it was not.
    `is_acting`: the broker stands in for the master, and answers other requests.
    """

    def __init__(self, response: Command) -> None:
        super().__init__(response.remark or "the broker is not the master of its group")
        fields = response.fields
        self.address = fields.get(MASTER_ADDRESS_FIELD, "")
        epoch = fields.get(MASTER_EPOCH_FIELD, "")
        self.epoch = int(epoch) if epoch.isdigit() else 0
        self.is_begun = fields.get(OUTCOME_FIELD) == OUTCOME_UNKNOWN
        self.is_acting = fields.get(ACTING_FIELD) == "true"


def not_master(response: Command) -> NotMaster | None:
    """Return the NotMaster of an answer that has one, else None.

    RocketMQ's requests are answered with a code that its clients know, and the fields with the epoch.
    """
    told = response.code == ResponseCode.SERVICE_NOT_AVAILABLE and MASTER_EPOCH_FIELD in response.fields
    return NotMaster(response) if told or response.code == ResponseCode.NOT_MASTER else None


def checked(response: Command) -> Command:
    """Return a successful response. Raises `Refused` with the code and remark of any other."""
    if response.code != 0:
        raise refusal(response)
    return response


def refusal(response: Command) -> Refused:
    """Return the code and remark of an unsuccessful response as `Refused`."""
    return Refused(response.code, response.remark or f"refused with code {response.code}")


def reason_of(error: Exception) -> str:
    """Return an error's text without the file and line of a C library."""
    return getattr(error, "verify_message", None) or getattr(error, "reason", None) or str(error)
