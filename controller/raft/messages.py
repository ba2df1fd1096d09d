"""What the members of a Raft group say to each other, as declared types; their form on the wire is msgpack arrays.

Every message carries the sender's term. `Entry` is (command, index, term): the first byte of a command tells the
machine's commands (REGULAR) from the group's own (NO_OP, CONFIGURATION). Pure.
"""

from __future__ import annotations

import msgspec

from remoting.protocol.errors import RemoteViolation
from remoting.protocol.voting import VoteAnswer

Entry = tuple[bytes, int, int]
"""(command, index, term)."""
REGULAR = b"\x00"
"""First byte of an entry with a command for the machine."""
NO_OP = b"\x01"
"""The entry with which a leader begins its term."""
CONFIGURATION = b"\x02"
"""First byte of an entry that names the members from here on."""


class VoteRequest(msgspec.Struct, tag=1, array_like=True, frozen=True):
    """Vote for the sender. `trial`: would you, in this term, which has not begun? `forced`: the leader asked for it."""

    term: int
    last_index: int
    last_term: int
    trial: bool = False
    forced: bool = False


class Voted(msgspec.Struct, tag=2, array_like=True, frozen=True):
    """The answer; of a trial that is granted `term` is the one asked for, else it is the sender's own."""

    term: int
    answer: VoteAnswer
    trial: bool = False


class AppendEntries(msgspec.Struct, tag=3, array_like=True, frozen=True):
    """What follows entry `before` in the leader's log; whatever contradicts it there goes, in the same request."""

    term: int
    round: int
    """Of the leader's heartbeats; the answer repeats it."""
    committed: int
    before_index: int
    before_term: int
    entries: list[Entry]


class AppendAnswer(msgspec.Struct, tag=4, array_like=True, frozen=True):
    """`matched`: everything up to `index` is durable at the sender and the leader's. Else: go on at `index`.

    `hint_term` is the term of the sender's entry that contradicted, 0 when it had none there; `index` is then the
    first one of that term. `round` is 0 from a member that may not vote: nothing may be concluded from its presence.
    """

    term: int
    round: int
    matched: bool
    index: int
    hint_term: int = 0
    refused: int = 0
    """`before_index` of what did not match."""


class InstallState(msgspec.Struct, tag=5, array_like=True, frozen=True):
    """A piece of the state after entry `index`, for a member whose next entry the leader has no more."""

    term: int
    round: int
    index: int
    offset: int
    piece: bytes
    whole: int
    """Bytes of all pieces."""


class Installed(msgspec.Struct, tag=6, array_like=True, frozen=True):
    """The sender has the pieces of that state before `offset`."""

    term: int
    round: int
    index: int
    offset: int


class StandNow(msgspec.Struct, tag=7, array_like=True, frozen=True):
    """The leader hands over: stand for election at once."""

    term: int


class Join(msgspec.Struct, tag=10, array_like=True, frozen=True):
    """The sender's directory was empty when it started: it asks how far the receiver is."""

    term: int
    round: int


class JoinReply(msgspec.Struct, tag=11, array_like=True, frozen=True):
    """The answer to `Join`: whether the sender votes, and how far its term and its log are."""

    term: int
    round: int
    voter: bool
    last_index: int
    last_term: int
    refused: str = ""
    """Why the one that asked will never vote with the directory that it has; empty: it may."""


class Founded(msgspec.Struct, tag=9, array_like=True, frozen=True):
    """A majority has empty directories and nobody has an entry: the receiver, one of them, may vote."""

    term: int


RaftMessage = (
    VoteRequest
    | Voted
    | AppendEntries
    | AppendAnswer
    | InstallState
    | Installed
    | StandNow
    | Join
    | JoinReply
    | Founded
)
_decoder: msgspec.msgpack.Decoder[RaftMessage] = msgspec.msgpack.Decoder(RaftMessage)


def encode(message: RaftMessage) -> bytes:
    """A message for a frame."""
    return msgspec.msgpack.encode(message)


def decode(data: bytes) -> RaftMessage:
    """The message in a frame. Raises RemoteViolation when it is none."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise RemoteViolation(f"no message of a controller: {error}") from error
