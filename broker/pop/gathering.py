"""Acknowledgements that arrive together, written as one: an append costs more than all else about a single one.

What a request acknowledges is noted; at the end of the loop's turn, or ahead of whatever uses the tables of what is in
flight, one record ends all of it. Then the answers wait for that record.

Invariant: a message that was taken is not found in flight any more; an acknowledgement is answered when its record is
confirmed, or with the refusal of a store that failed. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from broker.requests import refusal_of
from broker.store.errors import StoreError
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import Peer
from remoting.transport.turn import soon

if TYPE_CHECKING:
    from broker.requests import RequestTools
    from runtime.metrics import Counter


Name = TypeVar("Name", str, bytes)
"""How a topic or queue is named."""


class GatheredTables(Protocol):
    """The tables of what is in flight."""

    gathered: dict[tuple[str, int], set[int]]
    """Group and queue id -> offsets of messages whose acknowledgement has gathered: they are not found any more."""
    write_gathered: Callable[[], None]
    """Called before the tables are used while there are any; empties that first."""


class AckGather(Generic[Name]):
    """Collects acknowledgements and writes them at the end of the turn."""

    def __init__(
        self,
        tools: RequestTools,
        in_flight: GatheredTables,
        *,
        write: Callable[[Mapping[tuple[str, Name, int], list[int]]], int],
        acknowledged: Counter,
    ) -> None:
        """`write` ends the ownership of these offsets by (group, name, queue id), as one record, and returns the
        position to be confirmed; StoreError: nothing has changed."""
        self._tools = tools
        self._in_flight = in_flight
        self._write: Callable[[Mapping[tuple[str, Name, int], list[int]]], int] = write
        self._acknowledged = acknowledged
        self._taken: dict[tuple[str, Name, int], list[int]] = {}
        self._answers: list[tuple[Peer, Command, Command]] = []
        in_flight.write_gathered = self.flush

    def take(self, group: str, name: Name, queue_id: int, offsets: Sequence[int]) -> None:
        """These messages, all in flight and each named once, are done."""
        self._flush_soon()
        self._taken.setdefault((group, name, queue_id), []).extend(offsets)
        self._in_flight.gathered.setdefault((group, queue_id), set()).update(offsets)

    def answer(self, peer: Peer, command: Command, reply: Command) -> None:
        """Send the reply when what was taken is confirmed, or the refusal of a store that failed."""
        if not command.is_oneway:
            self._flush_soon()
            self._answers.append((peer, command, reply))

    def flush(self) -> None:
        """Write what was taken as one record."""
        taken, self._taken = self._taken, {}
        answers, self._answers = self._answers, []
        self._in_flight.gathered.clear()
        try:
            position = self._write(taken) if taken else 0
        except StoreError as error:
            refused = refusal_of(self._tools.metrics, error)
            for peer, command, _reply in answers:
                peer.send(command.reply(refused.code, refused.remark, refused.fields))
            return
        self._acknowledged.value += sum(map(len, taken.values()))
        for peer, _command, reply in answers:
            self._tools.answers.reply_at(position, peer, reply)

    def _flush_soon(self) -> None:
        if not self._taken and not self._answers:
            soon(self.flush)
