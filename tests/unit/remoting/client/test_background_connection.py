"""A connection kept by a thread of its own."""

from __future__ import annotations

import asyncio
import threading

import pytest

from remoting.client.endpoint import BackgroundConnection, Endpoint
from remoting.protocol.frames.commands import Command
from tests.unit.remoting.client.served import served


def test_coroutines_run_there_and_their_results_come_back() -> None:
    with served(lambda peer, command: command.reply(body=command.body)) as server:
        background = BackgroundConnection(Endpoint(server.address), name="a-client")
        assert background.run(background.uplink.connection.request(Command(1, body=b"x"))).body == b"x"
        names: list[str] = []
        called = threading.Event()
        background.call_soon(lambda: names.append(threading.current_thread().name))
        background.call_soon(called.set)
        assert called.wait(10)
        assert names == ["a-client"]
        background.close()
        assert background.is_closed
        assert background.uplink.connection.closed
        background.close()


def test_errors_come_back_as_they_are() -> None:
    background = BackgroundConnection(Endpoint("127.0.0.1:1"), name="a-client")

    async def fail() -> None:
        raise LookupError("as it is")

    with pytest.raises(LookupError, match="as it is"):
        background.run(fail())
    background.close()


def test_who_stops_waiting_cancels_what_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Ctrl-C does in the main thread."""
    background = BackgroundConnection(Endpoint("127.0.0.1:1"), name="a-client")
    cancelled = threading.Event()
    begun = threading.Event()

    async def wait() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    submit = asyncio.run_coroutine_threadsafe

    def interrupted(coroutine, loop):
        future = submit(coroutine, loop)

        def result() -> None:
            assert begun.wait(10)
            raise KeyboardInterrupt

        future.result = result
        return future

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", interrupted)
    with pytest.raises(KeyboardInterrupt):
        background.run(wait())
    assert cancelled.wait(10)
    monkeypatch.undo()
    background.close()
