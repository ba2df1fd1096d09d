"""Chooses the twin of the proxy's hot loops: the compiled one where it was built from the sources here, else the pure.

Callers say `hot.core.write_run...`, so that tests may put the other twin there. LIGHTMQ_PURE=1 chooses the pure one.
Invariant: both twins do the same. Thread rule: chosen once, at import.
"""

from __future__ import annotations

from pathlib import Path

from mqtt_proxy.hot import pure
from mqtt_proxy.hot.contracts import Core
from remoting.hot.choice import Choice, choose

MODULES = ("compiled",)


def pure_core() -> Core:
    """Return the pure twin."""
    return Core("pure", pure.starts_of, pure.split, pure.pick, pure.write_run)


def compiled_core() -> Core:
    """Return the compiled twin. Raises ImportError where it was not built."""
    from mqtt_proxy.hot import compiled

    return Core("compiled", compiled.starts_of, compiled.split, compiled.pick, compiled.write_run)


choice: Choice[Core] = choose(Path(__file__).parent, MODULES, compiled_core, pure_core)
"""Which twin is in use, and why."""
core: Core = choice.core
