"""Request code -> handler; nothing else in a server decides where a request goes.

Invariant: every request that is not one-way is answered exactly once: by its handler, by `later`, or with the failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import cast

from remoting.protocol.codes import ResponseCode
from remoting.protocol.commands import Command
from remoting.protocol.errors import Refused
from remoting.server.access import Access
from remoting.transport.answering import failure_reply
from remoting.transport.contracts import Handler, Peer

PENDING_ATTRIBUTE = "pending replies"
"""Where a peer keeps the tasks of requests that are answered later, so that its end can end them."""


class Router:
    """The handler of a whole server: checks access, then calls the table's entry for the request's code."""

    def __init__(self, handlers: Mapping[int, Handler], *, access: Access | None = None) -> None:
        self._handlers = dict(handlers)
        self._access = access
        self.unknown_codes: dict[int, int] = {}
        """How often each code was asked for that has no handler."""

    def __call__(self, peer: Peer, command: Command) -> Command | None:
        """Answer one request; raises what the handler raises, `Refused` for an unknown code or missing access."""
        if self._access is not None:
            self._access.check(peer, command)
        handler = self._handlers.get(command.code)
        if handler is None:
            # Bounded: a peer may try all codes, yet only 16-bit ones are worth remembering one by one.
            counted = command.code if len(self.unknown_codes) < 1024 else -1
            self.unknown_codes[counted] = self.unknown_codes.get(counted, 0) + 1
            raise Refused(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {command.code} not supported")
        return handler(peer, command)


def later(peer: Peer, command: Command, awaitable: Awaitable[Command | None]) -> None:
    """Send the awaitable's result when it is there; a failure is answered as a handler's, the peer's end cancels it."""
    task = asyncio.ensure_future(_reply(peer, command, awaitable))
    tasks = peer.attributes.get(PENDING_ATTRIBUTE)
    if tasks is None:
        tasks = peer.attributes[PENDING_ATTRIBUTE] = set()
        pending = cast("set[asyncio.Task[None]]", tasks)
        peer.on_close(lambda _reason: _cancel(pending))
    pending = cast("set[asyncio.Task[None]]", tasks)
    pending.add(task)
    task.add_done_callback(pending.discard)


async def _reply(peer: Peer, command: Command, awaitable: Awaitable[Command | None]) -> None:
    try:
        reply = await awaitable
    except Exception as error:  # noqa: BLE001 - whatever failed, the peer gets an answer
        reply = failure_reply(peer, command, error)
    if reply is not None and not command.is_oneway:
        peer.send(reply)


def _cancel(tasks: set[asyncio.Task[None]]) -> None:
    for task in list(tasks):
        task.cancel()
