"""Services of a process: started in order, stopped in reverse, each with a deadline.

Invariant: whatever was started is stopped, also when a later one fails to start; one service that hangs or fails while
stopping does not keep the others from being stopped. Loop rule: everything happens on the loop that calls ``start``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from runtime.logs import get_logger

STOP_DEADLINE_S = 10.0


class Service(Protocol):
    """Something with a beginning and an end."""

    async def start(self) -> object:
        """Begin; raises when it cannot."""
        ...

    async def stop(self) -> object:
        """End; what was acknowledged stays durable."""
        ...


class ServiceGroup:
    """Named services in their order of start."""

    def __init__(self, *, stop_deadline_s: float = STOP_DEADLINE_S) -> None:
        self._stop_deadline_s = stop_deadline_s
        self._deadlines_s: dict[str, float] = {}
        self._services: list[tuple[str, Service, Callable[[], bool] | None]] = []
        self._started: list[tuple[str, Service]] = []
        self._stopping = False
        self._log = get_logger("service")

    def add(
        self,
        name: str,
        service: Service,
        *,
        ready: Callable[[], bool] | None = None,
        stop_deadline_s: float | None = None,
    ) -> None:
        """Append a service; ``ready`` answers for it when its start alone does not mean readiness.

        ``stop_deadline_s`` is for one that may take longer to stop than others.
        """
        if stop_deadline_s is not None:
            self._deadlines_s[name] = stop_deadline_s
        self._services.append((name, service, ready))

    async def start(self) -> None:
        """Start all in order; when one fails, stop those already started and raise its error."""
        assert not self._started
        for name, service, _ in self._services:
            try:
                await service.start()
            except BaseException:
                await self.stop()
                raise
            self._started.append((name, service))

    async def begin(
        self,
        name: str,
        service: Service,
        *,
        ready: Callable[[], bool] | None = None,
        stop_deadline_s: float | None = None,
    ) -> None:
        """Add a service that could not be built earlier, and start it; when it fails nothing else is stopped."""
        self.add(name, service, ready=ready, stop_deadline_s=stop_deadline_s)
        await service.start()
        self._started.append((name, service))

    async def stop(self) -> None:
        """Stop what is started, last first; failures and missed deadlines are logged, not raised."""
        self._stopping = True
        while self._started:
            name, service = self._started.pop()
            deadline_s = self._deadlines_s.get(name, self._stop_deadline_s)
            try:
                await asyncio.wait_for(service.stop(), deadline_s)
            except TimeoutError:
                self._log.error("stop_deadline_missed", service=name, deadline_s=deadline_s)
            except Exception as error:  # noqa: BLE001  # the others must still be stopped
                self._log.error("stop_failed", service=name, error=repr(error), exc_info=error)

    def readiness(self) -> dict[str, bool]:
        """Service name -> whether it can do its work now; all False once stopping has begun."""
        started = {name for name, _ in self._started}
        return {
            name: not self._stopping and name in started and (ready is None or ready())
            for name, _, ready in self._services
        }
