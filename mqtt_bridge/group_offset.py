"""The offset of the bridge's consumer group in one queue of our broker: read, stored durably.

Invariant: `store` returns when the broker has the offset on its disk. Loop rule: all on the loop's thread.
"""

from __future__ import annotations

from remoting.protocol.errors import RemoteViolation
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import Connection
from remoting.transport.failures import checked


class GroupOffset:
    """One group in one queue, a light queue's name serves as a topic with the single queue 0."""

    __slots__ = ("_fields", "_line")

    def __init__(self, line: Connection, group: str, topic: str, number: int) -> None:
        self._line = line
        self._fields = {"consumerGroup": group, "topic": topic, "queueId": str(number)}

    async def stored(self) -> int | None:
        """The next offset the group wants; None when it never stored one."""
        fields = {**self._fields, "setZeroIfNotFound": "false"}
        response = await self._line.request(Command(RequestCode.QUERY_CONSUMER_OFFSET, fields=fields))
        if response.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        try:
            return int(checked(response).fields["offset"])
        except (KeyError, ValueError) as error:
            raise RemoteViolation(f"an answer without an offset: {response.fields}") from error

    async def store(self, offset: int) -> None:
        """Store it."""
        fields = {**self._fields, "commitOffset": str(offset)}
        checked(await self._line.request(Command(RequestCode.UPDATE_CONSUMER_OFFSET, fields=fields)))
