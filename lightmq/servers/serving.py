"""A server process from its first to its last breath: start, say the ports, wait for a signal, stop.

Invariant: the ports are said once and only when everything is ready; SIGTERM and SIGINT end cleanly with status 0, a
second signal ends at once (what was acknowledged is durable anyway). SIGHUP reads again what may change meanwhile. A
service that cannot go on is stopped as well, and its reason is raised.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from lightmq.configuration import LogsConfig
from runtime import logs, process
from runtime.service import Service

INPUT = 0
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Server(Service, Protocol):
    """What can be served: a service that knows its ports once it is started."""

    def ports(self) -> Mapping[str, int]:
        """Open ports by what they speak: mqtt, remoting, admin."""
        ...

    def until_failed(self) -> Awaitable[Exception]:
        """Wait until the started service cannot go on by itself; return why."""
        ...

    def reload(self) -> None:
        """Read again what may change while it runs: certificates."""
        ...


def serve(
    make: Callable[[], Server],
    *,
    settings: LogsConfig,
    json_output: bool,
    greeting: Callable[[Mapping[str, int]], str],
    supervised: bool = False,
) -> None:
    """Run the service that ``make`` builds (inside the loop) until a signal. Raises what its start raises.

    ``supervised``: by another process of ours, which holds our standard input open; its end is a signal to stop.
    """
    process.refuse_optimised()
    logs.setup(settings.level, json=settings.json)
    process.run(_serve(make, json_output=json_output, greeting=greeting, supervised=supervised))


async def _serve(
    make: Callable[[], Server],
    *,
    json_output: bool,
    greeting: Callable[[Mapping[str, int]], str],
    supervised: bool,
) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, _end, loop, ended)
    if supervised:
        loop.add_signal_handler(signal.SIGINT, _leave_it)
        loop.add_reader(INPUT, _input_moved, loop, ended)
    service = make()
    loop.add_signal_handler(signal.SIGHUP, service.reload)
    starting = asyncio.ensure_future(service.start())  # a signal while starting must end it as well
    ending = asyncio.ensure_future(ended.wait())
    try:
        await asyncio.wait((starting, ending), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            open_ports = service.ports()
            _say(json.dumps(dict(open_ports)) if json_output else greeting(open_ports))
            process.settle_garbage()
            await _until_the_end(service, ending)
    finally:
        ending.cancel()
        if not starting.done():
            starting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await starting
        else:
            await service.stop()


async def _until_the_end(service: Server, ending: asyncio.Task[Any]) -> None:
    """Wait for a signal; raise what keeps the service from going on, if that comes first."""
    failing = asyncio.ensure_future(service.until_failed())
    await asyncio.wait((failing, ending), return_when=asyncio.FIRST_COMPLETED)
    if failing.done():
        raise failing.result()
    failing.cancel()


def _end(loop: asyncio.AbstractEventLoop, ended: asyncio.Event) -> None:
    ended.set()
    for number in SIGNALS:
        loop.remove_signal_handler(number)  # back to the default: the next one ends the process


def _leave_it() -> None:
    """Ctrl-C reaches every process of the terminal; the supervisor says what is to be done."""


def _input_moved(loop: asyncio.AbstractEventLoop, ended: asyncio.Event) -> None:
    """The supervisor writes nothing: its end of the pipe is closed, so it has gone, also while we are stopping."""
    if os.read(INPUT, 1):
        return
    loop.remove_reader(INPUT)
    if ended.is_set():
        os._exit(1)
    ended.set()


def _say(text: str) -> None:
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
