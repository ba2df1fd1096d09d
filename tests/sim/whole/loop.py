"""Simulated time, hosts and their event loops: every shipped coroutine runs on one of these, none on a real loop.

A `Host` is a machine with one process at a time; its `HostLoop` is the loop of that process. All callbacks of all
hosts wait in one heap by time and order; `World.run` takes the first, sets the clock to its time and runs it. A host
that is paused keeps what is due until it goes on; one whose disk blocks it begins everything later; a process that is
killed never runs again, not even its `finally` blocks, because its loop is kept and dropped with the schedule.
Invariant: only the seed's generator decides; nothing sleeps, and nobody reads a real clock. Thread rule: one thread;
what the product gives to an executor runs here too, some simulated milliseconds later.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import random
from asyncio import events
from collections.abc import Callable, Coroutine
from typing import Any

EPOCH_NS = 1_700_000_000_000_000_000
"""Wall time at the beginning of a schedule."""
EXECUTOR_S = (0.0002, 0.004)
"""How long work in a thread takes, shortest and longest."""


class Violation(AssertionError):
    """A rule is broken."""

    def __init__(self, rule: str, detail: str) -> None:
        super().__init__(f"{rule}: {detail}")
        self.rule = rule


class World:
    """The time and all hosts of one schedule."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.now = 0.0
        self.events = 0
        self.trace: Callable[[str], object] | None = None
        self.on_turn: Callable[[Host], None] = lambda _host: None
        """Called after each callback of a host."""
        self.failures: list[str] = []
        """What loops were told that nobody handled."""
        self._heap: list[tuple[float, int, Host | None, int, Any]] = []
        self._order = 0

    def tell(self, who: str, what: str) -> None:
        """Note something for the trace."""
        if self.trace is not None:
            self.trace(f"{self.now:10.4f} {who:<4} {what}")

    def push(self, when: float, host: Host | None, what: Any) -> None:
        """Let a handle run on a host, or a function outside all hosts."""
        self._order += 1
        heapq.heappush(self._heap, (max(when, self.now), self._order, host, host.boot if host else 0, what))

    def after(self, seconds: float, function: Callable[[], object]) -> None:
        """Do something that belongs to no host."""
        self.push(self.now + seconds, None, function)

    def run(self, until: float) -> None:
        """Let the time pass."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            item = heapq.heappop(heap)
            self._take(item)
        self.now = max(self.now, until)

    def _take(self, item: tuple[float, int, Host | None, int, Any]) -> None:
        when, order, host, boot, what = item
        self.now = max(self.now, when)
        if host is None:
            self.events += 1
            what()
            return
        if boot != host.boot or host.loop is None or what.cancelled():
            return
        if host.is_paused:
            host.held.append(item)
        elif host.busy_until > self.now:
            heapq.heappush(self._heap, (host.busy_until, order, host, boot, what))
        else:
            self.events += 1
            host.turn(what)
            self.on_turn(host)

    def release(self, items: list[tuple[float, int, Host | None, int, Any]]) -> None:
        """What a pause held back is due now."""
        for item in items:
            heapq.heappush(self._heap, (max(item[0], self.now), *item[1:]))


class HostClock:
    """The product's `Clock` of one host; its wall time may be off."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.offset_ns = 0

    def now_ns(self) -> int:
        """Wall time."""
        return EPOCH_NS + int(self._world.now * 1e9) + self.offset_ns

    def now_ms(self) -> int:
        """Wall time in milliseconds."""
        return self.now_ns() // 1_000_000

    def monotonic_ns(self) -> int:
        """Simulated time."""
        return int(self._world.now * 1e9)


class Host:
    """One machine; `boot` counts its processes."""

    def __init__(self, world: World, name: str, address: str) -> None:
        self.world, self.name, self.address = world, name, address
        self.clock = HostClock(world)
        self.boot = 0
        self.machine_boots = 1
        """How often it had power after it had none."""
        self.loop: HostLoop | None = None
        self.is_paused = False
        self.busy_until = 0.0
        """The process waits for its disk until then."""
        self.held: list[tuple[float, int, Host | None, int, Any]] = []
        self._former: list[object] = []

    @property
    def is_up(self) -> bool:
        """Whether a process runs."""
        return self.loop is not None

    def start(self, main: Callable[[], Coroutine[Any, Any, Any]]) -> asyncio.Task[Any]:
        """Start a process with a main task."""
        assert self.loop is None, self.name
        self.boot += 1
        self.busy_until, self.is_paused = 0.0, False
        loop = self.loop = HostLoop(self)
        with loop.running():
            return loop.create_task(main())

    def turn(self, handle: events.Handle) -> None:
        """Run one callback of the process."""
        loop = self.loop
        assert loop is not None
        with loop.running():
            handle._run()

    def kill(self, *keep: object) -> None:
        """The process ends at once; its objects are kept, so that nothing of it is finalized and runs again."""
        if self.loop is not None:
            self._former += [self.loop, *keep]
            self.loop = None
            self.boot += 1
        self.held.clear()
        self.is_paused = False

    def pause(self) -> None:
        """The process stands still."""
        self.is_paused = self.is_up

    def go_on(self) -> None:
        """It runs again, and does what has become due."""
        self.is_paused = False
        held, self.held = self.held, []
        self.world.release(held)

    def block(self, seconds: float) -> None:
        """The process waits for its disk."""
        self.busy_until = max(self.busy_until, self.world.now) + seconds


class _Running:
    def __init__(self, loop: HostLoop) -> None:
        self._loop = loop

    def __enter__(self) -> None:
        events._set_running_loop(self._loop)

    def __exit__(self, *_error: object) -> None:
        events._set_running_loop(None)


class HostLoop(asyncio.AbstractEventLoop):
    """What the product uses of an event loop, over simulated time and network."""

    def __init__(self, host: Host) -> None:
        self.host, self._world = host, host.world
        self._boot = host.boot
        self.tasks: set[asyncio.Task[Any]] = set()

    def running(self) -> _Running:
        """While something of this process runs."""
        return _Running(self)

    # -- time and callbacks --

    def time(self) -> float:
        return self._world.now

    def call_soon(self, callback: Any, *args: Any, context: contextvars.Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if self._boot == self.host.boot:
            self._world.push(self._world.now, self.host, handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._world.now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if self._boot == self.host.boot:
            self._world.push(when, self.host, handle)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    # -- tasks --

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: Any = None, context: Any = None) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self.tasks.add(task)  # a killed process' tasks must not be finalized
        return task

    def run_in_executor(self, _executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        future: asyncio.Future[Any] = self.create_future()

        def work() -> None:
            try:
                result = func(*args)
            except Exception as error:
                if not future.cancelled():
                    future.set_exception(error)
            else:
                if not future.cancelled():
                    future.set_result(result)

        self.call_later(self._world.chance.uniform(*EXECUTOR_S), work)
        return future

    # -- errors and state --

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self._world.failures.append(f"{self.host.name}: {context.get('message')} {error!r}")
        self._world.tell(self.host.name, f"FAILED {context.get('message')} {error!r}")

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return self._boot != self.host.boot

    # -- network --

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **_more: Any) -> Any:  # type: ignore[override]
        return self._world.network.listen(self.host, protocol_factory, host, port)  # type: ignore[attr-defined]

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Any, host: Any = None, port: Any = None, **_more: Any
    ) -> tuple[Any, Any]:
        return await self._world.network.dial(self.host, protocol_factory, host, port)  # type: ignore[attr-defined]
