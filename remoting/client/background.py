"""A connection on a thread of its own, for callers on other threads.

Invariant: the loop ends with `close`, and with the process. Thread rule: every method may be called from any thread but
the connection's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from remoting.client.endpoint import Endpoint
from remoting.client.reconnecting import ReconnectingConnection

Result = TypeVar("Result")


class BackgroundConnection:
    """An event loop on a thread, with a connection that it keeps up; made without waiting for a server."""

    def __init__(self, endpoint: Endpoint, *, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name=name, daemon=True)
        self._thread.start()
        self._opened = contextlib.AsyncExitStack()
        self.connection: ReconnectingConnection = self.run(self._opened.enter_async_context(endpoint.connected()))

    @property
    def is_closed(self) -> bool:
        """Whether the thread has ended."""
        return not self._thread.is_alive()

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine on the loop and wait for its result; who is interrupted while waiting cancels it."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Have the loop call `callback`; does not wait."""
        self._loop.call_soon_threadsafe(callback)

    def close(self) -> None:
        """Close the connection and end the thread; nothing when that has been done."""
        if self.is_closed:
            return
        self.run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _end(self) -> None:
        await self._opened.aclose()

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()
