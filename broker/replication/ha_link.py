"""A replica's socket to its master: frames out of what arrives, each handed on at once; how it ended.

Invariant: nothing is handed on once `ended` is done, and it is done when the connection is lost, a frame breaks the
rules or is not taken, or no byte came for too long. Loop rule: all on the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from broker.replication.decoder import Decoder
from broker.replication.frames import FROM_MASTER, Frame
from remoting.transport.turn import turn_of

BUFFER_BYTES = 4 * 1024 * 1024
"""Several parts as masters cut them: most are taken over where they arrived."""
DATA_BYTES_MAX = 64 * 1024 * 1024
"""Log bytes of one transfer: a part is at most as large as the master's, and the rest of one record."""


class MasterLink(asyncio.BufferedProtocol):
    """One connection to a master."""

    def __init__(
        self, opened: Callable[[MasterLink], None], received: Callable[[Frame], str], silence_s: float
    ) -> None:
        """`received` takes a frame and says why the connection is to end, or nothing."""
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[str] = self._loop.create_future()
        """Why there will be no more frames; the error where there is one."""
        self._opened, self._received = opened, received
        self._silence_s = silence_s
        self._heard_s = self._loop.time()
        self._decoder = Decoder(FROM_MASTER, DATA_BYTES_MAX, BUFFER_BYTES)
        self._transport: asyncio.Transport | None = None
        self._watch = self._loop.call_later(silence_s, self._look)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Whoever opened it may write now."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=0)  # what is said is said at once
        self._heard_s = self._loop.time()
        self._opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """Where the next bytes go."""
        return self._decoder.room()

    def buffer_updated(self, nbytes: int) -> None:
        """Hand on the frames that are whole; what they ask for at the end of the turn is done at once."""
        if self.ended.done():
            return
        self._heard_s = self._loop.time()
        turn = turn_of(self._loop)
        turn.hold()
        try:
            for frame in self._decoder.filled(nbytes):
                reason = self._received(frame)
                if reason:
                    self._end(reason)
                if self.ended.done():
                    return
        except Exception as error:  # noqa: BLE001 - whoever waits for the end decides what it means
            self._end(error)
        finally:
            turn.run()

    def write(self, data: bytes) -> None:
        """Say something; nothing when the connection has ended."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def abort(self, reason: str = "closed here") -> None:
        """End it at once."""
        self._end(reason)

    def connection_lost(self, error: Exception | None) -> None:
        """The master is gone."""
        self._transport = None
        self._end(error or "the master closed the connection")

    def _look(self) -> None:
        left_s = self._heard_s + self._silence_s - self._loop.time()
        if left_s > 0:
            self._watch = self._loop.call_later(left_s, self._look)
        else:
            self._end(TimeoutError("the master said nothing for too long"))

    def _end(self, why: str | Exception) -> None:
        self._watch.cancel()
        if not self.ended.done():
            if isinstance(why, str):
                self.ended.set_result(why)
            else:
                self.ended.set_exception(why)
        if self._transport is not None:
            self._transport.abort()
