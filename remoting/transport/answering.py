"""From a handler's result or failure to the reply its peer gets; the same on a socket and inside one process.

Invariant: a request that is not one-way gets exactly one reply from here or one from whoever the handler left it to;
no failure of a handler reaches the connection.
"""

from __future__ import annotations

import logging
from typing import Protocol, runtime_checkable

from remoting.protocol.errors import Refused, RemoteViolation
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import Handler, Peer

LOG = logging.getLogger("remoting")


@runtime_checkable
class CountsRefusals(Protocol):
    """A peer whose refusals have a limit."""

    def refused(self) -> None:
        """One more request of it was refused for lack of a right."""


def answer(handler: Handler, peer: Peer, command: Command) -> None:
    """Run the handler and send what it answers; a one-way request gets nothing."""
    try:
        reply = handler(peer, command)
        if reply is not None and not command.is_oneway:
            peer.send(reply)
    except Exception as error:  # noqa: BLE001 - whatever failed, the peer gets an answer
        reply = failure_reply(peer, command, error)
        if not command.is_oneway:
            peer.send(reply)


def failure_reply(peer: Peer, command: Command, error: Exception) -> Command:
    """The reply for a failed request: a refusal's own code, a malformed body as such, anything else logged."""
    if isinstance(error, Refused):
        if error.code == ResponseCode.NO_PERMISSION:
            note_refusal(peer)
        return command.reply(error.code, error.remark, dict(error.fields))
    if isinstance(error, RemoteViolation):
        # The frame was sound, only its content was not: an answer helps the peer more than a closed connection.
        LOG.warning("request %d of %s is malformed: %s", command.code, peer.address, error)
        return command.reply(ResponseCode.INVALID_PARAMETER, f"request {command.code} is malformed: {error}")
    LOG.error("request %d of %s failed", command.code, peer.address, exc_info=error)
    return command.reply(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")


def note_refusal(peer: Peer) -> None:
    """Count a refusal for lack of a right, where it is counted; the connection may end of it."""
    if isinstance(peer, CountsRefusals):
        peer.refused()
