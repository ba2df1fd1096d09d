"""What arrives together, written as one: an append costs as much as all else about a single pop or acknowledgement.

What a request acknowledges is noted; at the end of the loop's turn, or ahead of whatever uses the tables of what is in
flight, one record ends all of it. Requests for messages wait for the end of the turn too; then each takes what those
before it have left, and one record gives all of it (`held`). The answers wait for these records.

Invariant: a message that was taken is not found in flight any more; a request is answered when its record is confirmed,
or with the refusal of a store that failed, and nothing has changed then. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from broker.requests import refusal_of
from broker.store.errors import StoreError
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import Peer
from remoting.transport.turn import soon

if TYPE_CHECKING:
    from broker.pop.held import HeldChanges
    from broker.reading.bounds import LongPolls
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


TOGETHER_MAX = 256
"""Most requests for messages that are answered by one record."""

Given = tuple[Command | None, Callable[[StoreError | None], None]]
"""The answer to a request for messages, None as long as there is none, and what is to be called when what changes is
written, or cannot be."""


@dataclass(slots=True)
class PopRequest:
    """A request for messages, as POP and lite topics have it."""

    peer: Peer
    command: Command
    take: Callable[[], Given | None]
    """Hold what changes when it gets what there is; None for nothing. Refused: nothing is held."""
    wait_ms: int
    watched: Callable[[], Sequence[Hashable]]
    """The queues of which a message may end the wait."""
    about: Hashable
    """Requests that find the same have the same."""
    nothing: str
    """What the answer says that has no message."""


class PopGather:
    """Answers the requests for messages of a turn at its end."""

    def __init__(
        self, tools: RequestTools, in_flight: GatheredTables, held: HeldChanges, *, long_polls: LongPolls
    ) -> None:
        self._tools = tools
        self._in_flight = in_flight
        self._held = held
        self._long_polls = long_polls
        self._asked: list[PopRequest] = []

    def ask(self, request: PopRequest) -> None:
        """Answer it at the end of the turn, or when there is something before its time is over."""
        if not self._asked:
            soon(self.flush)
        self._asked.append(request)

    def flush(self) -> None:
        """Answer what was asked, in its order."""
        asked, self._asked = self._asked, []
        for first in range(0, len(asked), TOGETHER_MAX):
            self._answer(asked[first : first + TOGETHER_MAX])

    def _answer(self, requests: Sequence[PopRequest]) -> None:
        """Give all of them what there is by one record; the others wait."""
        for request in self._give(requests):
            nothing = ResponseCode.POLLING_FULL if self._long_polls.full else ResponseCode.POLLING_TIMEOUT

            def attempt(last: bool, request: PopRequest = request, nothing: int = nothing) -> bool:
                left = self._give([request])
                if left and last:
                    request.peer.send(request.command.reply(nothing, request.nothing))
                return last or not left

            if request.wait_ms > 0:
                self._long_polls.wait(request.peer, request.watched(), request.wait_ms, attempt, request.about)
            else:
                request.peer.send(request.command.reply(nothing, request.nothing))

    def _give(self, requests: Sequence[PopRequest]) -> list[PopRequest]:
        """Give these what there is, by one record; returns those that got nothing."""
        if self._in_flight.gathered:
            self._in_flight.write_gathered()  # what it wakes takes messages of its own: nothing is held yet
        taken: list[tuple[PopRequest, Given]] = []
        nothing: list[PopRequest] = []
        error: StoreError | None = None
        position = 0
        try:
            for request in requests:
                self._take(request, taken, nothing)
            position = self._held.write()
        except StoreError as failed:
            error = failed
        finally:
            self._held.drop()
        for request, (reply, written) in taken:
            written(error)
            if error is not None:
                self._refuse(request, error)
            elif reply is not None:
                self._tools.answers.reply_at(position, request.peer, reply)
        return nothing if error is None else [each for each in nothing if not any(each is one for one, _ in taken)]

    def _take(self, request: PopRequest, taken: list[tuple[PopRequest, Given]], nothing: list[PopRequest]) -> None:
        try:
            found = request.take()
        except (Refused, StoreError) as error:
            self._refuse(request, error)
            return
        if found is not None:
            taken.append((request, found))
        if found is None or found[0] is None:
            nothing.append(request)

    def _refuse(self, request: PopRequest, error: StoreError | Refused) -> None:
        refused = error if isinstance(error, Refused) else refusal_of(self._tools.metrics, error)
        request.peer.send(request.command.reply(refused.code, refused.remark, refused.fields))
