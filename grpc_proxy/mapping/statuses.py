"""Codes of RocketMQ's gRPC service for refusals of the broker and of the proxy.

Invariant: a code that is not in the table becomes INTERNAL_SERVER_ERROR; the remark is passed on unchanged. Pure.
"""

from __future__ import annotations

from typing import Any

from grpc_proxy.stubs import definition
from remoting.protocol.errors import LightMQError, Refused
from remoting.protocol.frames.codes import ResponseCode

Code = definition.Code

CODES: dict[int, int] = {
    ResponseCode.SYSTEM_BUSY: Code.TOO_MANY_REQUESTS,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: Code.NOT_IMPLEMENTED,
    ResponseCode.TRANSACTION_FAILED: Code.PRECONDITION_FAILED,
    ResponseCode.TRANSACTION_STATE_GROUP_WRONG: Code.INVALID_TRANSACTION_ID,
    ResponseCode.FLUSH_DISK_TIMEOUT: Code.MASTER_PERSISTENCE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: Code.HA_NOT_AVAILABLE,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: Code.SLAVE_PERSISTENCE_TIMEOUT,
    ResponseCode.MESSAGE_ILLEGAL: Code.BAD_REQUEST,
    ResponseCode.SERVICE_NOT_AVAILABLE: Code.HA_NOT_AVAILABLE,
    ResponseCode.VERSION_NOT_SUPPORTED: Code.VERSION_UNSUPPORTED,
    ResponseCode.NO_PERMISSION: Code.FORBIDDEN,
    ResponseCode.TOPIC_NOT_EXIST: Code.TOPIC_NOT_FOUND,
    ResponseCode.QUERY_NOT_FOUND: Code.OFFSET_NOT_FOUND,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: Code.ILLEGAL_FILTER_EXPRESSION,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: Code.CONSUMER_GROUP_NOT_FOUND,
    ResponseCode.INVALID_PARAMETER: Code.BAD_REQUEST,
    ResponseCode.NO_MESSAGE: Code.INVALID_RECEIPT_HANDLE,
    ResponseCode.POLLING_FULL: Code.TOO_MANY_REQUESTS,
    ResponseCode.POLLING_TIMEOUT: Code.MESSAGE_NOT_FOUND,
    ResponseCode.FLOW_CONTROL: Code.TOO_MANY_REQUESTS,
    ResponseCode.ILLEGAL_OPERATION: Code.BAD_REQUEST,
    ResponseCode.LMQ_QUOTA_EXCEEDED: Code.LITE_TOPIC_QUOTA_EXCEEDED,
    ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED: Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
}
"""Response code of the broker -> code of the gRPC service."""


class CallRejected(LightMQError):
    """A request that the proxy refuses: a code of the gRPC service and a text for the client."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def status(code: int = Code.OK, text: str = "") -> Any:
    """Return a Status message."""
    return definition.Status(code=code, message=text or Code.Name(code))


def status_of(error: LightMQError) -> Any:
    """Return the Status for a refusal, or for a broker that cannot be reached or does not answer in time."""
    if isinstance(error, CallRejected):
        return status(error.code, str(error))
    if isinstance(error, Refused):
        return status(CODES.get(error.code, Code.INTERNAL_SERVER_ERROR), error.remark)
    if isinstance(error, TimeoutError):
        return status(Code.PROXY_TIMEOUT, str(error))
    return status(Code.HA_NOT_AVAILABLE, str(error))


def overall(statuses: list[Any]) -> Any:
    """Return the Status of a call with these parts: theirs if they have one code, else MULTIPLE_RESULTS."""
    codes = {one.code for one in statuses}
    return statuses[0] if len(codes) == 1 else status(Code.MULTIPLE_RESULTS)


def reason_name(code: int) -> str:
    """Return a code's name as the reason of a counter."""
    return str(Code.Name(code)).lower()
