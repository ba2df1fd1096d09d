"""Errors of HTTP/2: the codes of RFC 9113, section 7, and the violation that ends a connection or one stream.

Invariant: whatever bytes come, what is raised is `Http2Violation`. Values only.
"""

from __future__ import annotations

from enum import IntEnum

from remoting.protocol.errors import RemoteViolation


class ErrorCode(IntEnum):
    """Codes of RST_STREAM and GOAWAY."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


class Http2Violation(RemoteViolation):
    """The peer broke HTTP/2 or a limit; `code` goes into GOAWAY or RST_STREAM."""

    def __init__(self, code: ErrorCode, reason: str, stream_id: int = 0) -> None:
        super().__init__(reason)
        self.code = code
        self.stream_id = stream_id
        """The stream that ends; 0: the connection."""
