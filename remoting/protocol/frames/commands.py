"""One remoting command: a request, a one-way request or a response, as it stands between header codec and handlers.

Invariant: a reply carries the opaque and the serialisation of its request, and flag bit 0.
Thread rule: a plain value; its owner may change it until it is handed to a transport.
"""

from __future__ import annotations

FLAG_RESPONSE = 1
"""Bit 0 of `flag`: this command answers another one."""
FLAG_ONEWAY = 2
"""Bit 1 of `flag`: no answer is expected."""
SERIALIZE_JSON = 0
SERIALIZE_ROCKETMQ = 1
LANGUAGE = "PYTHON"
PROTOCOL_VERSION = 479
"""Ordinal of RocketMQ V5_3_3; clients talk standard JSON from 401 on."""

PARTS = ("code", "opaque", "flag", "remark", "fields", "body", "language", "version", "serialize_type")
"""The parts of a command, in the order of its constructor."""


class Command:
    """A command like RocketMQ's RemotingCommand; `fields` is the header's string map, `body` opaque bytes."""

    __slots__ = ("body", "code", "fields", "flag", "language", "opaque", "remark", "serialize_type", "version")

    def __init__(
        self,
        code: int,
        opaque: int = 0,
        flag: int = 0,
        remark: str | None = None,
        fields: dict[str, str] | None = None,
        body: bytes = b"",
        language: str = LANGUAGE,
        version: int = PROTOCOL_VERSION,
        serialize_type: int = SERIALIZE_JSON,
    ) -> None:
        self.code = code
        self.opaque = opaque
        self.flag = flag
        self.remark = remark
        self.fields: dict[str, str] = {} if fields is None else fields
        self.body = body
        self.language = language
        self.version = version
        self.serialize_type = serialize_type

    def __repr__(self) -> str:
        return f"Command({', '.join(f'{name}={getattr(self, name)!r}' for name in PARTS)})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Command):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in PARTS)

    __hash__ = None  # type: ignore[assignment]  # it may be changed

    @property
    def is_response(self) -> bool:
        """True for an answer to a request."""
        return bool(self.flag & FLAG_RESPONSE)

    @property
    def is_oneway(self) -> bool:
        """True for a request without an answer."""
        return bool(self.flag & FLAG_ONEWAY)

    def reply(
        self, code: int = 0, remark: str | None = None, fields: dict[str, str] | None = None, body: bytes = b""
    ) -> Command:
        """Return the response to this command: same opaque, same serialisation, response bit set."""
        return Command(
            code,
            self.opaque,
            self.flag | FLAG_RESPONSE,
            remark,
            {} if fields is None else fields,
            body,
            LANGUAGE,
            PROTOCOL_VERSION,
            self.serialize_type,
        )
