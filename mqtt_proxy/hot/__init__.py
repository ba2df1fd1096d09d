"""Chooses the twin of the proxy's hot loops: the compiled one where it was built from the sources here, else the pure.

Callers say `hot.core.write_run...`, so that tests may put the other twin there. LIGHTMQ_PURE=1 chooses the pure one.
Invariant: both twins do the same. Thread rule: chosen once, at import.
"""

from __future__ import annotations

from pathlib import Path

from mqtt_proxy import TYPED
from mqtt_proxy.hot import pure_publish
from mqtt_proxy.mqtt.session import scan
from remoting.native.choice import Choice, choose, why_unusable
from remoting.native.packet_contracts import Core
from remoting.native.reference import packets as pure

MODULES = ("compiled_publish",)


def pure_core() -> Core:
    """Return the pure twin."""
    return Core(
        "pure", pure.starts_of, pure.split, pure.pick, pure.write_run, scan.scan_publishes, scan.scan_publishes_5,
        scan.scan_acknowledgements, scan.scan_exact, scan.consume_runs, pure_publish.survey, pure_publish.settle,
    )  # fmt: skip


def compiled_core() -> Core:
    """Return the compiled twin. Raises ImportError where it was not built."""
    from mqtt_proxy.hot import compiled_publish
    from remoting.native.compiled import packets as compiled

    return Core(
        "compiled", compiled.starts_of, compiled.split, compiled.pick, compiled.write_run,
        compiled_publish.scan_publishes, compiled_publish.scan_publishes_5, compiled_publish.scan_acknowledgements,
        compiled_publish.scan_exact, compiled_publish.consume_runs, compiled_publish.survey, compiled_publish.settle,
    )  # fmt: skip


choice: Choice[Core] = choose(compiled_core, pure_core, TYPED.reason or why_unusable(Path(__file__).parent, MODULES))
"""Which twin is in use, and why."""
core: Core = choice.core
scan.IN_USE.runs = core.consume_runs
