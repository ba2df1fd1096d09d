"""Chooses who serves plain sockets: the compiled driver where it was built from the sources here, else the loop.

Callers say `hot.core.driver`, so that tests may put the other twin there. LIGHTMQ_PURE=1 chooses the loop's transports.
Invariant: a connection behaves the same on both. Thread rule: chosen once, at import.
"""

from __future__ import annotations

from mqtt_proxy.front.hot.contracts import Core
from remoting import TYPED
from remoting.native.choice import Choice, choose


def pure_core() -> Core:
    """Return the twin without a driver: transports of asyncio or uvloop."""
    return Core("pure", None, None)


def compiled_core() -> Core:
    """Return the compiled twin. Raises ImportError where it was not built."""
    from remoting.native.compiled import accept as compiled_accept
    from remoting.native.compiled import driver as compiled_driver

    return Core("compiled", compiled_driver.Driver, compiled_accept.accept)


choice: Choice[Core] = choose(compiled_core, pure_core, TYPED.reason)
"""Which twin is in use, and why."""
core: Core = choice.core
