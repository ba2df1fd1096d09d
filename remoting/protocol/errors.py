"""The exception tree of LightMQ and which layer raises what.

    LightMQError
    ├── LocalMisuse       the caller broke a rule of an interface; a bug on this side of the wire
    │   ├── RecordTooLarge a record that no segment of the log can hold
    │   └── TooManyQueues a record with more queues than one can name
    ├── RemoteViolation   the peer sent what the protocol forbids; becomes an event and a close
    │   └── CorruptRecord a record whose bytes contradict themselves (magic, sizes, position, checksum)
    └── Refused           a valid request that is refused: a response code and a remark for the peer
        └── NotOffered    the same, for a feature of RocketMQ that this server does not have

Invariant: decoding functions raise RemoteViolation (or CorruptRecord) for malformed bytes, nothing else.
Thread rule: plain values, usable anywhere.
"""

from __future__ import annotations


class LightMQError(Exception):
    """Base of every error this project raises on purpose."""


class LocalMisuse(LightMQError):
    """Code on this side passed a value or made a call that the interface forbids."""


class RecordTooLarge(LocalMisuse):
    """A message too large for the log; the caller's limits must be lower."""


class TooManyQueues(LocalMisuse):
    """A message for more queues than one record can name; several records can."""


class RemoteViolation(LightMQError):
    """The peer broke the protocol; `reason` explains it to its operator."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class CorruptRecord(RemoteViolation):
    """A record whose bytes contradict themselves; `reason` names the first check that failed."""


class Refused(LightMQError):
    """A valid request that is refused: a response `code`, a `remark`, and optional `fields` for the peer."""

    def __init__(self, code: int, remark: str, fields: dict[str, str] | None = None) -> None:
        super().__init__(f"code {code}: {remark}")
        self.code = code
        self.remark = remark
        self.fields = fields or {}


class NotOffered(Refused):
    """A request for a feature of RocketMQ that this server does not have; servers count them by client."""
