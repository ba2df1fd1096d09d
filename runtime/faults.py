"""Named points where a test may make the world fail.

Production code calls ``faults.hit("log.fsync")`` just before it does the thing; unless a test armed that name the call
costs one look-up in an empty dictionary. Invariant: an unarmed :class:`FaultPoints` never raises. Thread rule: arm
before the threads that hit start, or while they are idle; counting is protected by the interpreter lock only.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass

from remoting.protocol.errors import LocalMisuse

Fault = BaseException | Callable[[], None]


@dataclass(slots=True)
class _Armed:
    fault: Fault
    skip: int
    left: int | None


class FaultPoints:
    """The named failure points of one process."""

    __slots__ = ("_hits", "armed")

    def __init__(self) -> None:
        self.armed: dict[str, _Armed] = {}
        """What is armed, by name; empty outside of tests."""
        self._hits: dict[str, int] = {}

    def hit(self, name: str) -> None:
        """Raise (or do) what was armed for ``name``; nothing when it is not armed."""
        if name in self.armed:
            self._fire(name)

    def arm(self, name: str, fault: Fault, *, after: int = 0, times: int | None = 1) -> None:
        """Make ``name`` fail: let ``after`` hits pass, then fail ``times`` times (None: for ever).

        ``fault`` is an exception to raise or a function to call (for example one that kills the process).
        """
        assert after >= 0, after
        assert times is None or times > 0, times
        self.armed[name] = _Armed(fault, after, times)
        self._hits[name] = 0

    def disarm(self, name: str) -> None:
        """Make ``name`` harmless again; unknown names are fine."""
        self.armed.pop(name, None)

    def hits(self, name: str) -> int:
        """How often an armed point was passed since it was armed."""
        return self._hits.get(name, 0)

    def _fire(self, name: str) -> None:
        armed = self.armed[name]
        self._hits[name] += 1
        if armed.skip > 0:
            armed.skip -= 1
            return
        if armed.left is not None:
            armed.left -= 1
            if armed.left == 0:
                del self.armed[name]
        if isinstance(armed.fault, BaseException):
            raise armed.fault
        armed.fault()


def parse_faults(text: str) -> FaultPoints:
    """Fault points from ``name=ERROR[@after][*times]`` items, comma separated, for tests of whole processes.

    ERROR is an errno name (``EIO``, ``ENOSPC``), or ``kill`` which ends the process at once, as a power cut would.
    ``log.fsync=EIO@3`` fails the fourth hit once; ``log.write=ENOSPC*0`` fails every hit. Raises LocalMisuse.
    """
    points = FaultPoints()
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, separator, rest = item.partition("=")
        rest, _, times = rest.partition("*")
        kind, _, after = rest.partition("@")
        try:
            points.arm(name, _fault_named(kind, name), after=int(after or 0), times=int(times or 1) or None)
        except (ValueError, AttributeError) as error:
            raise LocalMisuse(f"fault {item!r} is not name=ERROR[@after][*times]: {error}") from error
        if not separator:
            raise LocalMisuse(f"fault {item!r} is not name=ERROR[@after][*times]")
    return points


def _fault_named(kind: str, name: str) -> Fault:
    if kind == "kill":
        return lambda: os._exit(137)
    number = getattr(errno, kind)
    return OSError(number, os.strerror(number), f"fault point {name}")
