"""Chooses who serves plain sockets: the compiled driver where it was built from the sources here, else the loop.

Callers say `hot.core.driver`, so that tests may put the other twin there. LIGHTMQ_PURE=1 chooses the loop's transports.
Invariant: a connection behaves the same on both. Thread rule: chosen once, at import.
"""

from __future__ import annotations

from pathlib import Path

from mqtt_proxy import TYPED
from mqtt_proxy.front.hot.contracts import Core
from remoting.hot.choice import Choice, choose

MODULES = ("compiled_accept", "compiled_driver")


def pure_core() -> Core:
    """Return the twin without a driver: transports of asyncio or uvloop."""
    return Core("pure", None, None)


def compiled_core() -> Core:
    """Return the compiled twin. Raises ImportError where it was not built."""
    from mqtt_proxy.front.hot import compiled_accept, compiled_driver

    return Core("compiled", compiled_driver.Driver, compiled_accept.accept)


choice: Choice[Core] = choose(Path(__file__).parent, MODULES, compiled_core, pure_core, TYPED.reason)
"""Which twin is in use, and why."""
core: Core = choice.core
