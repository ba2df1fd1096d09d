"""The end of a connection is told once, to everyone."""

from __future__ import annotations

import asyncio

from remoting.transport.ending import Ending, run_close_callback


async def test_everyone_hears_of_it_once(caplog):
    """Also who asks when it is over, and who stands behind one that fails."""
    ending, heard = Ending(), []
    ending.on_close(lambda reason: heard.append(reason) or 1 // 0)
    ending.on_close(heard.append)
    assert ending.closing is None
    ending.closing = "enough"
    assert ending.reason is None
    ending.finish()
    assert heard == ["enough", "enough"]
    assert "a close callback failed" in caplog.text
    late = asyncio.Queue()
    ending.on_close(late.put_nowait)
    assert late.empty(), "never inside the call"
    assert await late.get() == ending.reason == "enough"


def test_a_failing_close_callback_is_logged(caplog):
    run_close_callback(lambda reason: 1 // 0, "why")
    assert "a close callback failed" in caplog.text
