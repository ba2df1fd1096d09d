"""A handler behind a socket, in a thread of its own, for blocking clients."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from remoting.server.server import RemotingServer


class Served:
    """Answers at `address` until it is stopped."""

    def __init__(self, handler: Any) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.server = RemotingServer(handler)
        port = asyncio.run_coroutine_threadsafe(self.server.start("127.0.0.1", 0), self.loop).result(10)
        self.address = f"127.0.0.1:{port}"

    def stop(self) -> None:
        """End the server and its thread."""
        asyncio.run_coroutine_threadsafe(self.server.stop(), self.loop).result(10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        self.loop.close()


@contextlib.contextmanager
def served(handler: Any) -> Iterator[Served]:
    """Serve a handler for the length of the block."""
    server = Served(handler)
    try:
        yield server
    finally:
        server.stop()
